"""GraphWriter against plain loops, torch's own attention, and itself with other padding and order."""

import pyro
import pytest
import torch
from pyro import poutine
from torch import nn

from probattn import BayesianAttention, RepulsiveAttention
from probattn.models import (
    GraphTextProgram,
    GraphWriterConfig,
    GraphWriterForGeneration,
    convert,
    inspect,
)
from probattn.models.graphwriter import adjacency, repeated_copies
from probattn.models.graphwriter.graph import ContextAttention, VertexAttention
from probattn.models.hosts.cache import CACHE
from probattn.models.hosts.convert import conversion
from probattn.models.layers import additive_mask

V, PAD = 14, 0
SIZES = {
    "vocab_size": V,
    "num_relations": 3,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def network(seed=0, **options):
    torch.manual_seed(seed)
    return GraphWriterForGeneration(GraphWriterConfig(**SIZES | options)).eval()


def batch():
    """Two rows: 3 and 2 entities, 2 relations and none, texts of 4 and 2 tokens."""
    inputs = {
        "input_ids": [[5, 6, 7], [8, 9, 0]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "entity_ids": [[[5, 6], [7, 0], [8, 9]], [[6, 7], [9, 0], [0, 0]]],
        "entity_types": [[4, 10, 4], [10, 4, 0]],
        "relations": [[[0, 2, 1], [2, 1, 0]], [[-1] * 3, [-1] * 3]],
        "decoder_input_ids": [[2, 5, V, 6], [2, V + 1, 0, 0]],
        "decoder_attention_mask": [[1, 1, 1, 1], [1, 1, 0, 0]],
        "labels": [[5, V, 6, 3], [V + 1, 3, -100, -100]],
    }
    return {name: torch.tensor(value) for name, value in inputs.items()}


def padded(values, size, fill):
    """A tensor with ``fill`` up to ``size`` in every dimension."""
    whole = values.new_full(size, fill)
    whole[tuple(slice(0, length) for length in values.shape)] = values
    return whole


def close(first, second, **options):
    torch.testing.assert_close(first, second, **{"atol": 1e-5, "rtol": 1e-5} | options)


def test_adjacency_is_that_of_a_loop_over_relations():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        sizes = torch.randint(1, 5, (3,), generator=generator).tolist()
        entities = torch.arange(5) < torch.tensor(sizes)[:, None]
        rows = [
            [[int(torch.randint(size, (), generator=generator)) for _ in range(2)] for _ in range(row)]
            for row, size in enumerate(sizes)
        ]
        relations = torch.full((3, 2, 3), -1)
        for row, pairs in enumerate(rows):
            for place, (head, tail) in enumerate(pairs):
                relations[row, place] = torch.tensor([head, 0, tail])
        found = adjacency(entities, relations)
        for row, (size, pairs) in enumerate(zip(sizes, rows, strict=True)):
            edges = {(9, 9)}
            edges |= {pair for k in range(size) for pair in ((k, k), (k, 9), (9, k))}
            for place, (head, tail) in enumerate(pairs):
                there, back = 5 + place, 7 + place
                edges |= {
                    (there, there),
                    (back, back),
                    (head, there),
                    (there, tail),
                    (tail, back),
                    (back, head),
                }
            assert {tuple(pair) for pair in found[row].nonzero().tolist()} == edges


def test_attention_is_torchs_with_the_states_added():
    torch.manual_seed(0)
    own = VertexAttention(GraphWriterConfig(**SIZES)).eval()
    torchs = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    with torch.no_grad():
        torchs.in_proj_weight.copy_(torch.cat([own.query.weight, own.key.weight, own.value.weight]))
        torchs.out_proj.weight.copy_(torch.eye(8))
        states, others = torch.randn(3, 5, 8), torch.randn(3, 6, 8)
        valid = torch.rand(3, 5, 6) < 0.7
        valid[..., 0] = True
        expected, weights = torchs(
            states, others, others, attn_mask=~valid.repeat_interleave(2, 0), average_attn_weights=False
        )
        found, own_weights = own(states, others, additive_mask(valid[:, None], torch.float32), None)
    close(found, states + expected)
    close(own_weights, weights)


def test_the_decoder_is_a_loop_that_feeds_its_contexts_back():
    net, inputs = network(), batch()
    output = net(**inputs)
    encoded = net.model.encoder(**{name: inputs[name] for name in list(inputs)[:5]})
    decoder, vertices, title = net.model.decoder, encoded.last_hidden_state, encoded.title

    def context(state, row):
        parts = []
        for module, source, real in (
            (decoder.graph_attention, vertices[row], encoded.vertex_mask[row]),
            (decoder.title_attention, title[row], encoded.title_mask[row]),
        ):
            query, key, value = (
                part(x)
                for part, x in zip(
                    (module.query, module.key, module.value), (state, source[real], source[real]), strict=True
                )
            )
            heads = [
                torch.softmax(key[:, cut] @ query[cut] / 2, dim=0) @ value[:, cut]
                for cut in (slice(0, 4), slice(4, 8))
            ]
            parts.append(state + torch.cat(heads))
        return torch.cat(parts)

    types = inputs["entity_types"]
    for row, tokens in enumerate([[2, 5, V, 6], [2, V + 1]]):
        hidden = cell = vertices[row, -1]
        fed = context(hidden, row)
        for place, token in enumerate(tokens):
            word = token if token < V else int(types[row, token - V])
            embedded = net.model.encoder.embed_tokens.weight[word]
            gates = decoder.cell.weight_ih @ torch.cat([embedded, fed]) + decoder.cell.bias_ih
            gates = gates + decoder.cell.weight_hh @ hidden + decoder.cell.bias_hh
            entry, forget, new, out = gates.chunk(4)
            cell = forget.sigmoid() * cell + entry.sigmoid() * new.tanh()
            hidden = out.sigmoid() * cell.tanh()
            fed = context(hidden, row)
            close(output.decoder_last_hidden_state[row, place], hidden)
            close(output.contexts[row, place], fed)


def test_words_and_copies_have_probability_1_and_missing_entities_none():
    output = network()(**batch()).logits.exp()
    assert output.shape == (2, 4, V + 3)
    close(output.sum(-1), torch.ones(2, 4))
    assert (output[1, :, V + 2] == 0).all() and (output[0] > 0).all()


def test_the_mixture_is_that_of_its_parts():
    net, inputs = network(), batch()
    output = net(**inputs)
    read = torch.cat([output.decoder_last_hidden_state, output.contexts], -1)
    gate = net.output.gate(read).sigmoid()
    close(output.logits[..., :V].exp(), (1 - gate) * net.output.words(read).softmax(-1))
    entities = output.encoder_last_hidden_state[0, :3]
    scores = net.output.copies(read[0]) @ entities.T
    close(output.logits[0, :, V:].exp(), gate[0] * scores.softmax(-1))


def test_padding_of_any_part_changes_nothing():
    net, inputs = network(), batch()
    expected = net(**inputs)
    sizes = {"input_ids": (2, 5), "attention_mask": (2, 5), "entity_ids": (2, 5, 4), "entity_types": (2, 5)}
    fills = {"relations": -1, "labels": -100}
    sizes |= {
        "relations": (2, 4, 3),
        "decoder_input_ids": (2, 7),
        "decoder_attention_mask": (2, 7),
        "labels": (2, 7),
    }
    wide = {name: padded(inputs[name], size, fills.get(name, 0)) for name, size in sizes.items()}
    found = net(**wide)
    close(found.loss, expected.loss)
    close(found.logits[:, :4, : V + 3], expected.logits)
    assert (found.logits[:, :4, V + 3 :].exp() == 0).all()
    for row, length in enumerate((4, 2)):
        alone = {name: value[row : row + 1] for name, value in inputs.items()}
        if row:
            alone["entity_ids"], alone["entity_types"] = (
                alone["entity_ids"][:, :2],
                alone["entity_types"][:, :2],
            )
            alone["relations"] = alone["relations"][:, :0]
            alone |= {
                name: alone[name][:, :2] for name in ("decoder_input_ids", "decoder_attention_mask", "labels")
            }
            alone |= {name: alone[name][:, :2] for name in ("input_ids", "attention_mask")}
        entities = 3 - row
        close(net(**alone).logits[0, :length], expected.logits[row, :length, : V + entities])


def test_the_order_of_relations_changes_nothing_and_that_of_entities_their_order_alone():
    net, inputs = network(), batch()
    expected = net(**inputs).logits
    close(net(**inputs | {"relations": inputs["relations"].flip(1)}).logits, expected)
    order = torch.tensor([2, 0, 1])  # place of each entity in the new order
    new = dict(inputs)
    back = order.argsort()
    for name in ("entity_ids", "entity_types"):
        new[name] = inputs[name][:, back]
    new["relations"] = inputs["relations"].clone()
    real = inputs["relations"][..., 0] >= 0
    for side in (0, 2):
        new["relations"][..., side][real] = order[inputs["relations"][..., side][real]]
    tokens = inputs["decoder_input_ids"]
    new["decoder_input_ids"] = torch.where(tokens >= V, V + order[(tokens - V).clamp_min(0)], tokens)
    found = net(**{name: value for name, value in new.items() if name != "labels"}).logits
    close(found[..., :V], expected[..., :V])
    close(found[..., V:][..., order], expected[..., V:])


def test_the_graph_matters_and_entities_without_relations_are_apart_but_for_the_whole():
    net, inputs = network(), batch()
    other = inputs["relations"].clone()
    other[0, 0, 1] = 1
    assert not torch.allclose(
        net(**inputs | {"relations": other}).logits[0], net(**inputs).logits[0], atol=1e-4
    )
    weights = net(**inputs, output_attentions=True).encoder_attentions
    assert len(weights) == 2 and weights[0].shape == (2, 2, 8, 8)
    assert (weights[0][1, :, 0, 1] == 0).all() and (weights[0][1, :, 0, 7] > 0).all()


def test_gradients_reach_every_parameter():
    net = network(3).train()
    net(**batch()).loss.backward()
    missing = [
        name for name, weight in net.named_parameters() if weight.grad is None or not weight.grad.any()
    ]
    assert missing == []


def test_it_is_a_function_of_its_seed_and_precise_in_float64():
    inputs = batch()
    torch.manual_seed(1)
    first = network().train()(**inputs).logits
    torch.manual_seed(1)
    assert not torch.equal(first, network().eval()(**inputs).logits)
    assert torch.equal(network()(**inputs).logits, network()(**inputs).logits)
    double = network().double()(**inputs).logits
    assert double.dtype == torch.float64
    close(double.float(), network()(**inputs).logits, atol=1e-4)
    close(double.exp().sum(-1), torch.ones(2, 4).double(), atol=1e-12)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_step_from_the_state_before_is_the_whole_pass(name):
    net, inputs = network(), batch()
    whole = net(**{name: value for name, value in inputs.items() if "labels" not in name}).logits
    encoded = net.model.encoder(**{name: inputs[name] for name in list(inputs)[:5]})
    past = None
    for place in range(4):
        step = net(
            decoder_input_ids=inputs["decoder_input_ids"][:, place : place + 1],
            encoder_outputs=encoded,
            **{name: past},
        )
        past = step[CACHE]
        close(step.logits[0, 0], whole[0, place])
    assert past.get_seq_length() == 4


def test_drawn_weights_reach_the_output_and_not_the_queries_after_them():
    net, inputs = network(), batch()
    expected = net(**inputs)
    convert(net, BayesianAttention.bam(), attention="cross")
    with torch.no_grad():
        close(net(**inputs).logits, expected.logits)  # at the posterior expectation
        torch.manual_seed(0)
        trace = poutine.trace(GraphTextProgram(net)).get_trace(inputs)
    sites = {
        name for name, site in trace.nodes.items() if site["type"] == "sample" and not site["is_observed"]
    }
    assert {"model.decoder.graph_attention", "model.decoder.title_attention"} <= sites
    with torch.no_grad(), poutine.trace(), pyro.plate("data", 2):
        drawn = net(**inputs)
    close(drawn.decoder_last_hidden_state, expected.decoder_last_hidden_state)
    assert not torch.allclose(drawn.contexts, expected.contexts, atol=1e-3)


def test_the_encoder_alone_is_chosen_by_name():
    assert [call.kind for call in inspect(network())] == ["self", "self", "cross", "cross"]
    net = convert(network(), RepulsiveAttention(layers="encoder"))
    calls = conversion(net).plan.calls_of(RepulsiveAttention)
    assert [call.name for call in calls] == [f"model.encoder.graph.blocks.{n}.attention" for n in range(2)]


def test_coverage_is_the_sum_of_a_loop():
    torch.manual_seed(0)
    copies, real = torch.rand(2, 5, 3), torch.arange(5) < torch.tensor([[5], [3]])
    for row, length in enumerate((5, 3)):
        total = 0.0
        for entity in range(3):
            seen = 0.0
            for place in range(length):
                value = copies[row, place, entity].item()
                total += min(value, seen)
                seen += value
        assert repeated_copies(copies, real)[row].item() == pytest.approx(total, rel=1e-5)


def test_coverage_is_a_factor_of_the_program():
    net, inputs = network(), batch()
    plain = poutine.trace(GraphTextProgram(net)).get_trace(inputs)
    other = poutine.trace(GraphTextProgram(net, coverage=0.5)).get_trace(inputs)
    copies = net(**inputs).logits[..., V:].exp()
    expected = -0.5 * repeated_copies(copies, inputs["labels"] != -100).sum()
    close(other.log_prob_sum() - plain.log_prob_sum(), expected, atol=1e-4)
    scaled = poutine.trace(GraphTextProgram(net, coverage=0.5, num_data=20, mean_length=4.0)).get_trace(
        inputs
    )
    close(scaled.log_prob_sum(), other.log_prob_sum() * 10 / 4, atol=1e-3, rtol=1e-4)


def test_the_likelihood_is_the_networks_loss():
    net, inputs = network(), batch()
    trace = poutine.trace(GraphTextProgram(net)).get_trace(inputs)
    close(-trace.log_prob_sum() / 6, net(**inputs).loss)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"relations": None}, "expected relations beside input_ids, got none"),
        ({"entity_types": torch.ones(2, 2).long()}, r"expected entity_types \[2, 3\], got \[2, 2\]"),
        ({"relations": torch.tensor([[[0, 3, 1]]] * 2)}, r"expected relations in 0\.\.2, got 3"),
        ({"relations": torch.tensor([[[0, 0, 1]], [[0, 0, 2]]])}, "got entity 2 in row 1"),
        (
            {"relations": torch.tensor([[[0, 0, 1]], [[0, 0, -1]]])},
            r"got entity -1 in row 1, relation \[0, 0, -1\]",
        ),
        ({"relations": torch.tensor([[[-1, 0, 1]], [[0, 0, 1]]])}, r"in row 0, relation \[-1, 0, 1\]"),
        ({"entity_ids": torch.zeros(2, 3, 2).long()}, "expected an entity in every row, got none in row 0"),
        ({"decoder_input_ids": torch.full((2, 4), V + 3)}, f"expected decoder_input_ids below {V + 3}"),
        ({"decoder_attention_mask": torch.ones(2, 3)}, r"expected decoder_attention_mask \[2, 4\]"),
        ({"input_ids": None}, "expected input_ids, the words of the titles"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change, words):
    inputs = {name: value for name, value in batch().items() if name != "labels"} | change
    with pytest.raises(ValueError, match=words):
        network()(**inputs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden_size": 9}, "expected an even multiple of the heads"),
        ({"num_relations": 0}, "num_relations: expected an integer >= 1"),
        ({"dropout": 1.0}, r"dropout: expected a number in \[0, 1\)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        GraphWriterConfig(**SIZES | options)


def test_queries_of_the_decoder_are_marked_as_its_own():
    assert ContextAttention.is_decoder and not hasattr(VertexAttention, "is_decoder")
