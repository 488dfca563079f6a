"""The LSTM encoder-decoder against torch's LSTM by hand, attention by a loop, and a search by hand."""

import random

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForSeq2SeqLM

import probattn
from probattn.data import PairCollate
from probattn.inference import OptimizerOptions, SVIDriver
from probattn.models import (
    RecurrentForTranslation,
    RecurrentModel,
    RecurrentTranslationConfig,
    SearchOptions,
    Translator,
    capture,
    convert,
    head_redundancy,
    inspect,
    masked_heads,
    translate,
)
from probattn.probes import lexical_probe
from probattn.sites.repulsive import repulsive_heads

WORDS = 12
SIZES = {"vocab_size": WORDS, "embedding_size": 5, "hidden_size": 4, "output_size": 7}


def network(seed=0, **options):
    torch.manual_seed(seed)
    config = RecurrentTranslationConfig(
        **SIZES | {"num_attention_heads": 2, "decoder_hidden_size": 6} | options
    )
    return RecurrentForTranslation(config).eval()


def batch(lengths=((5, 4), (3, 2), (1, 1)), seed=0):
    draw = torch.Generator().manual_seed(seed)
    sides = []
    for side in (0, 1):
        mask = torch.tensor([[1] * pair[side] + [0] * (lengths[0][side] - pair[side]) for pair in lengths])
        sides.append((torch.randint(4, WORDS, mask.shape, generator=draw), mask))
    labels = torch.randint(4, WORDS, sides[1][0].shape, generator=draw).masked_fill(sides[1][1] == 0, -100)
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    return dict(zip(names, (*sides[0], *sides[1]), strict=True)) | {"labels": labels}


def lstm_by_hand(lstm, words, start=None):
    """torch's LSTM over one sequence, layer by layer and direction by direction, from its cells."""
    directions = 2 if lstm.bidirectional else 1
    ends, layer_input = [], words
    for layer in range(lstm.num_layers):
        outputs = []
        for direction in range(directions):
            cell = nn.LSTMCell(layer_input.shape[1], lstm.hidden_size, dtype=words.dtype)
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(cell, name).data = getattr(lstm, name + suffix).data
            h = c = torch.zeros(1, lstm.hidden_size, dtype=words.dtype)
            if start is not None:
                h, c = start[0][layer][None], start[1][layer][None]
            found = []
            for word in layer_input.flip(0) if direction else layer_input:
                h, c = cell(word[None], (h, c))
                found.append(h[0])
            outputs.append(torch.stack(found[::-1] if direction else found))
            ends.append((h[0], c[0]))
        layer_input = torch.cat(outputs, 1)
    return layer_input, ends


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bidirectional": False, "num_hidden_layers": 1, "decoder_hidden_size": None},
        {"decoder_hidden_size": None, "output_size": 0, "num_attention_heads": 1},
    ],
)
def test_a_sentence_alone_by_hand(options):
    """Snell et al. 2021, Eq. 1, 2, 20, 21: cells of torch, then loops over heads and positions."""
    net, inputs = network(**options).double(), batch()
    config, model = net.config, net.model
    with torch.no_grad():
        found = net(**inputs, output_attentions=True)
        for row, (length, steps) in enumerate(((5, 4), (3, 2), (1, 1))):
            embed = model.encoder.embed_tokens.weight
            h, ends = lstm_by_hand(model.encoder.lstm, embed[inputs["input_ids"][row, :length]])
            directions = 2 if config.bidirectional else 1
            first = []
            for part, name in enumerate(("hidden", "cell")):
                layers = [
                    torch.cat([end[part] for end in ends[at : at + directions]])
                    for at in range(0, len(ends), directions)
                ]
                bridge = model.decoder.start
                first.append([each if bridge is None else bridge[name](each) for each in layers])
            s, _ = lstm_by_hand(model.decoder.lstm, embed[inputs["decoder_input_ids"][row, :steps]], first)
            torch.testing.assert_close(found.encoder_last_hidden_state[row, :length], h)
            torch.testing.assert_close(found.decoder_last_hidden_state[row, :steps], s)
            assert (found.encoder_last_hidden_state[row, length:] == 0).all()
            heads = model.attention.head_weights()
            for t in range(steps):
                context = torch.zeros(config.state_size, dtype=torch.double)
                for head in range(config.num_attention_heads):
                    scores = torch.stack([s[t] @ heads[head] @ h[place] for place in range(length)])
                    weights = scores.exp() / scores.exp().sum()
                    torch.testing.assert_close(found.cross_attentions[0][row, head, t, :length], weights)
                    assert (found.cross_attentions[0][row, head, t, length:] == 0).all()
                    context += sum(weights[place] * h[place] for place in range(length))
                joined = torch.cat([context, s[t]])
                if net.output.dense is not None:
                    joined = (net.output.dense.weight @ joined + net.output.dense.bias).clamp_min(0)
                logits = net.output.logits.weight @ joined + net.output.logits.bias
                torch.testing.assert_close(found.logits[row, t], logits)


def test_heads_are_slices_that_one_may_write():
    net, single = network(), network(num_attention_heads=1)
    inputs = batch()
    chosen = torch.randn(2, 6, 8)
    with torch.no_grad():
        net.model.attention.head_weights().copy_(chosen)
        assert torch.equal(net.model.attention.query.weight[8:], chosen[1].T)
        maps = net(**inputs, output_attentions=True).cross_attentions[0]
        state = {
            name: value for name, value in net.state_dict().items() if name != "model.attention.query.weight"
        }
        for head in range(2):
            weight = {"model.attention.query.weight": chosen[head].T}
            single.load_state_dict(state | weight)
            alone = single(**inputs, output_attentions=True).cross_attentions[0]
            torch.testing.assert_close(alone[:, 0], maps[:, head])


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_moves_no_logit_and_no_gradient(side):
    inputs = batch(((4, 3), (3, 2)))
    fills = {"input_ids": 7, "attention_mask": 0, "decoder_input_ids": 9, "decoder_attention_mask": 0}
    longer = {}
    for name, tensor in inputs.items():
        extra = tensor.new_full((2, 3), fills.get(name, -100))
        longer[name] = torch.cat([tensor, extra] if side == "right" else [extra, tensor], 1)
    net, grads, logits = network(), [], []
    for each in (inputs, longer):
        net.zero_grad()
        output = net(**each)
        output.loss.backward()
        logits.append(output.logits[each["labels"] != -100])
        grads.append({name: p.grad.clone() for name, p in net.named_parameters()})
    torch.testing.assert_close(*logits, atol=1e-6, rtol=1e-5)
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, atol=1e-7, rtol=1e-4)
    assert grads[0]["model.attention.query.weight"].abs().sum() > 0


def test_the_loss_is_the_cross_entropy_of_real_tokens_and_targets_shift_by_themselves():
    net, inputs = network(), batch()
    labels, logits = inputs["labels"], net(**inputs).logits
    picked = [-logits[r, t].log_softmax(-1)[labels[r, t]] for r, t in (labels >= 0).nonzero().tolist()]
    torch.testing.assert_close(net(**inputs).loss, torch.stack(picked).mean())
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    shifted = torch.cat([torch.full((3, 1), 2), labels[:, :-1].clamp_min(0)], 1)
    torch.testing.assert_close(
        net(**source, labels=labels).logits, net(**source, decoder_input_ids=shifted).logits
    )


def test_the_output_network_is_what_the_lexical_probe_takes():
    """beta_{t,l} = N([h_l, s_t])_{y_t}, pair by pair."""
    net, inputs = network(), batch(((4, 3), (4, 3)))
    with torch.no_grad():
        found = net(**inputs)
        h, s = found.encoder_last_hidden_state, found.decoder_last_hidden_state
        probe = lexical_probe(net.output, h, s, inputs["labels"])
        for row, t, place in [(0, 0, 0), (0, 2, 3), (1, 1, 2)]:
            probabilities = net.output(h[row, place], s[row, t]).softmax(-1)
            torch.testing.assert_close(probe[row, t, place], probabilities[inputs["labels"][row, t]])
        joined = net.output.dense(torch.cat([h[0, 1], s[0, 2]]))
        torch.testing.assert_close(net.output(h[0, 1], s[0, 2]), net.output.logits(joined.relu()))


def test_uniform_attention_is_uniform_over_real_tokens_and_has_no_gradient():
    net, inputs = network(uniform_attention=True), batch()
    output = net(**inputs, output_attentions=True)
    for row, length in enumerate((5, 3, 1)):
        expected = torch.tensor([1 / length] * length + [0.0] * (5 - length))
        torch.testing.assert_close(output.cross_attentions[0][row], expected.expand(2, 4, 5))
    output.loss.backward()
    grad = net.model.attention.query.weight.grad
    assert grad is None or (grad == 0).all()


class Letters:
    def encode(self, text):
        return [4 + "abcdefgh".index(letter) for letter in text]

    def decode(self, tokens):
        return "".join("abcdefgh"[token - 4] for token in tokens if token > 3)


@pytest.mark.parametrize("methods", [(), (probattn.BayesianAttention(),)])
def test_a_beam_of_one_is_greedy_search_without_a_cache(methods):
    net = network(seed=3)
    net.output.logits.weight.data *= 8  # so that words differ
    translator = Translator(convert(net, *methods) if methods else net).eval()
    options = SearchOptions(num_beams=1, extra_length=4, batch_size=2)
    sources = ["abc", "hgfe", "d", "bb"]
    found = dict(zip(sources, translate(translator, sources, Letters(), options), strict=True))
    assert len(set(found.values())) > 1
    for source in sources:
        longest = 4 if len(source) > 2 else 2  # of the two that are searched for together
        tokens = []
        for _ in range(longest + 1 + 4):
            inputs = {
                "input_ids": torch.tensor([[*Letters().encode(source), 3]]),
                "decoder_input_ids": torch.tensor([[2, *tokens]]),
            }
            with torch.no_grad():
                logits = translator(inputs)[0, -1]
            logits[[0, 2]] = -torch.inf
            tokens.append(int(logits.argmax()))
            if tokens[-1] == 3:
                break
        assert found[source] == Letters().decode([token for token in tokens if token != 1])


@pytest.mark.parametrize("seed", range(3))
def test_beams_keep_their_own_states(seed):
    """With the cache and without, where the whole beginning is read anew for each token."""
    net = network(seed=seed)
    net.output.logits.weight.data *= 8
    source = {name: batch()[name] for name in ("input_ids", "attention_mask")}
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 8, "do_sample": False}
    found, again = (net.generate(**source, **options, use_cache=cache) for cache in (True, False))
    assert torch.equal(found, again) and len({tuple(row) for row in found.tolist()}) > 4


def test_its_base_is_read_from_the_same_folder(tmp_path):
    net, inputs = network(), {name: value for name, value in batch().items() if name != "labels"}
    net.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert type(base) is RecurrentModel and torch.equal(base(**inputs).contexts, net(**inputs).contexts)
    whole = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert whole.generation_config.decoder_start_token_id == 2


def test_heads_are_particles_measured_and_masked():
    net = network()
    (call,) = inspect(net)
    assert (call.name, call.kind, call.decoder, call.num_heads, call.num_key_value_heads) == (
        "model.attention",
        "cross",
        True,
        2,
        1,
    )
    inputs = {name: value for name, value in batch().items() if name != "labels"}
    found = capture(net, inputs)["model.attention"]
    assert torch.equal(found.query_valid, inputs["decoder_attention_mask"].bool())
    with torch.no_grad(), masked_heads(net, {"model.attention": [0]}):
        context = net(**inputs).contexts
    torch.testing.assert_close(context, found.output[:, 1])
    drops = head_redundancy(net, lambda: net(**inputs).logits[:, 0].std().item()).drops
    assert len(drops["model.attention"]) == 2
    convert(net, probattn.RepulsiveAttention(projections=("query",)))
    particles = repulsive_heads(net)["model.attention.query"][1].particles()
    assert torch.equal(particles[1], net.model.attention.head_weights()[1].T.flatten())


def test_upward_maps_over_positions_would_see_the_future():
    with pytest.raises(ValueError, match=r"model\.attention: .*those of a decoder would see the future"):
        convert(network(), probattn.BayesianAttention(upward="positions"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden_size": 0}, "hidden_size: expected an integer >= 1, got 0"),
        ({"output_size": -1}, "output_size: expected an integer >= 0, got -1"),
        ({"decoder_hidden_size": 2.5}, "decoder_hidden_size: expected an integer >= 1, got 2.5"),
        ({"dropout": 1.0}, r"dropout: expected a number in \[0, 1\), got 1.0"),
        ({"bidirectional": 1}, "bidirectional: expected true or false, got 1"),
    ],
)
def test_sizes_out_of_range_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        RecurrentTranslationConfig(**options)


def test_inputs_that_do_not_fit_are_refused():
    net, inputs = network(), batch()
    with pytest.raises(ValueError, match="expected decoder_input_ids, the target shifted by one"):
        net(inputs["input_ids"])
    with pytest.raises(ValueError, match="expected input_ids or inputs_embeds"):
        net(decoder_input_ids=inputs["decoder_input_ids"])
    with pytest.raises(ValueError, match=r"expected attention_mask \[3, 5\], got \[3, 4\]"):
        net(**inputs | {"attention_mask": inputs["attention_mask"][:, 1:]})
    with pytest.raises(ValueError, match=r"expected decoder_attention_mask \[3, 4\], got \[3, 3\]"):
        net(**inputs | {"decoder_attention_mask": inputs["decoder_attention_mask"][:, 1:]})


class Reversed:
    """Random words, and the same from their end."""

    def __init__(self, number, seed):
        draw = random.Random(seed)
        self.words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 4))) for _ in range(number)]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, row):
        tokens = Letters().encode(self.words[row])
        return {"input_ids": [*tokens, 3], "labels": [*tokens[::-1], 3]}

    def lengths(self):
        return [len(word) for word in self.words]


@pytest.mark.slow
def test_reversing_is_learned():
    sizes = {"embedding_size": 16, "hidden_size": 24, "decoder_hidden_size": 32, "output_size": 32}
    net = network(num_hidden_layers=1, num_attention_heads=1, **sizes)
    rows = Reversed(2000, 0)
    driver = SVIDriver(
        Translator(net, mean_length=3.5),
        optimizer=OptimizerOptions("Adam", 1e-2),
        scheduler=None,
        batch_size=64,
        collate=PairCollate(),
        length_pool=8,
        progress=False,
        cpu=True,
    )
    driver.fit(rows, steps=250)
    unseen = [word for word in Reversed(150, 1).words if word not in set(rows.words)]
    assert len(unseen) > 30
    found = translate(driver.model, unseen, Letters(), SearchOptions(num_beams=2))
    right = sum(a == b[::-1] for a, b in zip(found, unseen, strict=True))
    assert right / len(unseen) > 0.9, right / len(unseen)
