"""Signed effects of tokens: against masks of transformers, finite differences, closed forms and moments."""

import copy
import dataclasses
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import binary_cross_entropy
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

import probattn
from probattn.inference import (
    AttentionEffects,
    attention_effects,
    posterior_expectation,
    posterior_moments,
    posterior_predict,
    share_by,
)
from probattn.inference.effects import BatchEffects, Request, effects_on_targets
from probattn.models import convert, program_for
from probattn.models.hosts.convert import conversion

SMALL = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "initializer_range": 0.3,
}
TIGHT = {"rtol": 0.0, "atol": 1e-12}
FLOAT32_NORMS = {"gemma2", "llama", "modernbert", "t5"}
"""Families that normalise in float32 whatever their type."""
REFUSED = {
    "clip": (TypeError, "no program is known for this head"),
    "swin": (ValueError, "attends within windows, whose keys are no tokens"),
}


def bert(kind=BertForSequenceClassification, **options):
    torch.manual_seed(0)
    return kind(BertConfig(**SMALL, **options)).double().eval()


def batch(rows=3, length=7):
    words = torch.randint(1, 60, (rows, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1, 5:] = 0
    return {"input_ids": words, "attention_mask": mask}


def log_odds(logits, answer):
    index = answer[:, None]
    return (
        logits.gather(1, index) - logits.scatter(1, index, -torch.inf).logsumexp(1, keepdim=True)
    ).squeeze(1)


def masked(net, inputs, key, **options):
    mask = inputs["attention_mask"].clone()
    mask[:, key] = 0
    with torch.no_grad():
        return net(**inputs | {"attention_mask": mask}, **options).logits


@pytest.mark.parametrize("num_labels", [2, 5])
@pytest.mark.parametrize("converted", [False, True])
def test_a_knock_out_is_a_padding_mask(num_labels, converted):
    net, inputs = bert(num_labels=num_labels), batch()
    with torch.no_grad():
        logits = net(**inputs).logits
    answer = logits.argmax(1)
    others = [masked(net, inputs, key) for key in range(7)]
    if converted:
        net = convert(net, probattn.BayesianAttention())
    effects = attention_effects(net, inputs, method="knockout")
    expected = log_odds(logits, answer)
    torch.testing.assert_close(effects.value[0], expected, **TIGHT)
    knocked = torch.stack([expected - log_odds(other, answer) for other in others], 1)
    torch.testing.assert_close(effects.effect, knocked, **TIGHT)
    probability = torch.stack(
        [other.float().softmax(1).gather(1, answer[:, None])[:, 0] for other in others], 1
    )
    change = logits.float().softmax(1).gather(1, answer[:, None]) - probability
    torch.testing.assert_close(effects.change.float(), change, rtol=0.0, atol=1e-6)
    assert effects.answer_without.tolist() == torch.stack([other.argmax(1) for other in others], 1).tolist()
    assert effects.answer.equal(answer)


def test_effects_of_every_family(family, reweighted):
    """Slopes by finite differences, knock-outs by a factor of the weights near 0."""
    net, inputs = family.network().double(), family.inputs()
    if family.name in REFUSED:
        kind, message = REFUSED[family.name]
        with pytest.raises(kind, match=message):
            attention_effects(net, inputs)
        return
    inputs = {name: item.double() if item.is_floating_point() else item for name, item in inputs.items()}
    generator = torch.Generator().manual_seed(2)
    direction = None

    def number(logits):
        nonlocal direction
        flat = logits.flatten(1)
        if direction is None:
            direction = torch.randn(flat.shape[1], generator=generator, dtype=torch.float64)
        return flat @ direction

    state = {name: item.clone() for name, item in net.state_dict().items()}
    effects = attention_effects(net, inputs, target=number, method="knockout")
    assert effects.slope.abs().max() > 1e-6
    assert conversion(net) is None
    for name, item in net.state_dict().items():
        assert item.equal(state[name])
    latent = convert(net, probattn.BayesianAttention.bam(prior="constant"))
    key = 2

    def at(log_factor):
        factors = {}
        for name, slopes in effects.by_site.items():
            factor = torch.ones(slopes.shape[-1], dtype=torch.float64)
            factor[key] = torch.tensor(log_factor, dtype=torch.float64).exp()
            factors[name] = factor
        return number(reweighted(latent, inputs, factors))

    coarse = family.name in FLOAT32_NORMS
    step, error = (2e-3, 5e-3) if coarse else (1e-4, 1e-7)
    difference = (at(step) - at(-step)) / (2 * step)
    torch.testing.assert_close(effects.slope[:, key], difference, rtol=error, atol=error)
    error = 1e-5 if coarse else 1e-9
    torch.testing.assert_close(effects.knockout[:, key], at(0.0) - at(-600.0), rtol=error, atol=error)


def test_slopes_are_sums_of_those_of_moments():
    net, inputs = bert(num_labels=3), batch()
    moments = posterior_moments(
        convert(copy.deepcopy(net), probattn.BayesianAttention()),
        inputs,
        attribution=(0, 2),
        method="expansion",
    )
    effects = attention_effects(net, inputs, target=(0, 2), method="slope")
    torch.testing.assert_close(effects.effect, share_by(moments.slope, "key"), **TIGHT)
    torch.testing.assert_close(
        share_by(effects.by_site, "site", "head", "key"),
        share_by(moments.slope, "site", "head", "key"),
        **TIGHT,
    )
    assert not effects.exact.any()


def test_words_add_slopes_and_are_knocked_out_together():
    net, inputs = bert(), batch()
    words = [[None, 0, 0, 1, 1, 1, None], [None, 0, 1, 2, None, None, None], [None, 0, 0, 0, 1, 2, None]]
    tokens = attention_effects(net, inputs, method="slope")
    effects = attention_effects(net, inputs, method="knockout", words=words)
    assert effects.effect.shape == (3, 3)
    torch.testing.assert_close(effects.slope[0, 1], tokens.slope[0, 3:6].sum(), **TIGHT)
    assert effects.effect[0, 2].isnan()  # the first row has two words
    answer = effects.answer
    expected = effects.value[0] - log_odds(masked(net, inputs, [1, 2]), answer)
    torch.testing.assert_close(effects.effect[0, 0], expected[0], **TIGHT)
    for_, against = effects.leading(0)
    assert {item.index for item in (*for_, *against)} == {0, 1}
    assert all(item.effect > 0 for item in for_)
    assert all(item.effect < 0 for item in against)


def test_words_of_a_second_text_come_after_those_of_the_first(word_tokenizer):
    encoding = word_tokenizer(
        ["good films", "films"], ["bad film", "good"], padding=True, return_tensors="pt"
    )
    effects = attention_effects(bert(), encoding, words=encoding)
    # [CLS] good film ##s [SEP] bad film [SEP], and [CLS] film ##s [SEP] good [SEP] [PAD] [PAD]
    assert effects.groups.tolist() == [[-1, 0, 1, 1, -1, 2, 3, -1], [-1, 0, 0, -1, 1, -1, -1, -1]]


def test_screened_effects_are_knock_outs_where_slopes_lead():
    net, inputs = bert(), batch(length=12)
    inputs["attention_mask"][:] = 1
    slopes = attention_effects(net, inputs, method="slope").effect
    knocked = attention_effects(net, inputs, method="knockout").effect
    for method, number in (("screened", 3), (1, 1), (50, 12)):
        effects = attention_effects(net, inputs, method=method)
        for row in range(3):
            order = slopes[row].argsort().tolist()
            leading = {*order[:number], *order[-number:]}
            assert set(effects.exact[row].nonzero().squeeze(1).tolist()) == leading
        torch.testing.assert_close(effects.effect, torch.where(effects.exact, knocked, slopes), **TIGHT)
        assert effects.change.isnan().equal(~effects.exact)
    with pytest.raises(ValueError, match="method: expected"):
        attention_effects(net, inputs, method=0)


def test_several_targets_share_forward_passes():
    net, inputs = bert(num_labels=3), batch(length=12)
    targets = ["answer", "doubt", 1]
    alone = [attention_effects(net, inputs, target=target, method="knockout") for target in targets]
    with patch.object(BatchEffects, "_run", autospec=True, side_effect=BatchEffects._run) as run:
        together = effects_on_targets(net, inputs, Request(targets, "knockout"))
        rows = [len(call.args[1]) for call in run.call_args_list]
    assert sum(rows) == 3 + 3 * 12  # a row with all tokens, and one without each
    for item, other in zip(together, alone, strict=True):
        torch.testing.assert_close(item.effect, other.effect, **TIGHT, equal_nan=True)
        torch.testing.assert_close(item.slopes, other.slopes, **TIGHT, equal_nan=True)
    pairs = [(0, 1), (2, 1)]
    screened = effects_on_targets(net, inputs, Request(pairs))
    single = [attention_effects(net, inputs, target=pair).exact for pair in pairs]
    assert not single[0].equal(single[1])
    assert all(item.exact.equal(single[0] | single[1]) for item in screened)


def test_a_network_that_a_model_holds_twice_is_one():
    program = program_for(bert())
    program.same = program.net
    torch.testing.assert_close(
        attention_effects(program, batch()).effect, attention_effects(bert(), batch()).effect, **TIGHT
    )


class Numbers(torch.nn.Module):
    """Logits of a network, read with a link."""

    def __init__(self, net, link, shift=None):
        super().__init__()
        self.net, self.link, self.shift = net, link, shift

    def forward(self, batch):
        logits = self.net(**batch).logits
        return logits if self.shift is None else logits + self.shift


@pytest.mark.parametrize(
    ("link", "target", "oracle"),
    [
        ("softmax", "doubt", lambda z: torch.distributions.Categorical(logits=z).entropy()),
        ("softmax", 1, lambda z: z[:, 1] - torch.logsumexp(z[:, [0, 2]], 1)),
        ("softmax", (2, 0), lambda z: z[:, 2] - z[:, 0]),
        ("softmax", torch.tensor([0, 2, 1]), lambda z: log_odds(z, torch.tensor([0, 2, 1]))),
        ("softmax", lambda z: z[:, 0] ** 2, lambda z: z[:, 0] ** 2),
        ("sigmoid", "answer", lambda z: z.amax(1)),
        ("sigmoid", 2, lambda z: z[:, 2]),
        (
            "sigmoid",
            "doubt",
            lambda z: binary_cross_entropy(z.sigmoid(), z.sigmoid(), reduction="none").sum(1),
        ),
        ("identity", "answer", lambda z: z[:, 0]),
        ("identity", 1, lambda z: z[:, 1]),
    ],
)
def test_targets_against_closed_forms(link, target, oracle):
    net, inputs = bert(num_labels=3), batch()
    with torch.no_grad():
        value = oracle(net(**inputs).logits)
    effects = attention_effects(Numbers(net, link), inputs, target=target, method="knockout")
    torch.testing.assert_close(effects.value[0], value, **TIGHT)
    change = value - oracle(masked(net, inputs, 3))
    if target != "answer":  # whose label is that of the whole text
        torch.testing.assert_close(effects.effect[:, 3], change, **TIGHT)


def test_the_doubt_of_a_class_that_is_ruled_out_has_slopes():
    shift = torch.tensor([0.0, 0.0, -torch.inf])
    effects = attention_effects(Numbers(bert(num_labels=3), "softmax", shift), batch(), target="doubt")
    other = Numbers(bert(num_labels=3), "softmax", torch.tensor([0.0, 0.0, -1e3]))
    torch.testing.assert_close(
        effects.effect, attention_effects(other, batch(), target="doubt").effect, **TIGHT
    )


def test_positions_of_tokens_and_spans():
    net, inputs = bert(BertForTokenClassification, num_labels=3), batch()
    one = attention_effects(net, inputs, position=[1, 2, 4], target="doubt", method="knockout")
    whole = attention_effects(
        net,
        inputs,
        method="knockout",
        target=lambda z: torch.distributions.Categorical(logits=z[:, 2]).entropy(),
    )
    torch.testing.assert_close(one.effect[1], whole.effect[1], **TIGHT)
    spans = attention_effects(
        bert(BertForQuestionAnswering), inputs, position=1, target=torch.tensor([3, 2, 6]), method="knockout"
    )
    net = bert(BertForQuestionAnswering)
    with torch.no_grad():
        ends = net(**inputs).end_logits
    torch.testing.assert_close(spans.value[0], log_odds(ends, torch.tensor([3, 2, 6])), **TIGHT)


def test_the_next_token_of_a_causal_network():
    torch.manual_seed(0)
    net = (
        GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3))
        .double()
        .eval()
    )
    inputs = batch()
    inputs["attention_mask"][:] = 1
    effects = attention_effects(net, inputs, position=4, target=7, method="knockout")
    assert (effects.effect[:, 5:] == 0).all()  # later words are not read
    with torch.no_grad():
        before = log_odds(net(**inputs).logits[:, 4], torch.tensor([7] * 3))
    after = log_odds(masked(net, inputs, 2)[:, 4], torch.tensor([7] * 3))
    torch.testing.assert_close(effects.effect[:, 2], before - after, **TIGHT)


def test_both_sides_of_an_encoder_with_a_decoder():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=60, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    net = T5ForConditionalGeneration(config).double().eval()
    inputs = batch(length=6)
    targets = {
        "decoder_input_ids": torch.randint(1, 60, (3, 4)),
        "decoder_attention_mask": torch.ones(3, 4).long(),
    }
    answers = torch.tensor([5, 6, 7])
    source = attention_effects(net, inputs | targets, position=3, target=answers, method="knockout")
    former = attention_effects(
        net, inputs | targets, position=3, target=answers, method="knockout", sites="decoder"
    )
    assert (source.effect.shape, former.effect.shape) == ((3, 6), (3, 4))
    with torch.no_grad():
        before = log_odds(net(**inputs, **targets).logits[:, 3], answers)
    after = log_odds(masked(net, inputs, 2, **targets)[:, 3], answers)
    torch.testing.assert_close(source.effect[:, 2], before - after, **TIGHT)
    mask = targets["decoder_attention_mask"].clone()
    mask[:, 1] = 0
    with torch.no_grad():
        after = log_odds(net(**inputs, **targets | {"decoder_attention_mask": mask}).logits[:, 3], answers)
    torch.testing.assert_close(former.effect[:, 1], before - after, **TIGHT)


def test_choices_have_their_tokens_behind_one_another():
    net = bert(BertForMultipleChoice)
    inputs = {
        "input_ids": torch.randint(1, 60, (2, 3, 5)),
        "attention_mask": torch.ones(2, 3, 5, dtype=torch.long),
    }
    effects = attention_effects(net, inputs, method="knockout")
    assert effects.effect.shape == (2, 15)
    mask = inputs["attention_mask"].clone()
    mask[:, 1, 2] = 0
    with torch.no_grad():
        after = log_odds(net(**inputs | {"attention_mask": mask}).logits, effects.answer)
    torch.testing.assert_close(effects.effect[:, 7], effects.value[0] - after, **TIGHT)


def test_an_own_model():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = probattn.MultiheadAttention(8, 2, batch_first=True)
            self.read = torch.nn.Linear(8, 3)

        def forward(self, batch):
            x, mask = batch["x"], batch.get("padding")
            return self.read(self.attention(x, x, x, key_padding_mask=mask)[0][:, 0])

    torch.manual_seed(0)
    model = Own().double().eval()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    effects = attention_effects(model, {"x": x}, method="knockout")
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[:, 3] = True
    with torch.no_grad():
        after = log_odds(model({"x": x, "padding": padding}), effects.answer)
    torch.testing.assert_close(effects.effect[:, 3], effects.value[0] - after, **TIGHT)


@pytest.mark.parametrize(
    "method", [probattn.BayesianAttention(), probattn.BayesianAttention.bam(5.0)], ids=["babn", "bam"]
)
def test_effects_of_draws(method):
    net, inputs = convert(bert(), method), batch()
    effects = attention_effects(net, inputs, method="knockout", num_samples=4, seed=3)
    assert effects.draws.shape == (4, 3, 7)
    assert (effects.spread[0] > 0).all()
    again = attention_effects(net, inputs, method="knockout", num_samples=4, seed=3, chunk_size=2)
    torch.testing.assert_close(again.draws, effects.draws, **TIGHT)
    one = attention_effects(net, {name: item[:1] for name, item in inputs.items()}, num_samples=2, seed=3)
    torch.testing.assert_close(one.slopes[:, 0], effects.slopes[:2, 0], **TIGHT)
    values = attention_effects(net, inputs, method="slope", num_samples=300, target=(0, 1)).value
    drawn = posterior_predict(net, inputs, 300, chunk_size=100).logits
    drawn = drawn[..., 0] - drawn[..., 1]
    error = (values.var(dim=0) / 300 + drawn.var(dim=0) / 300).sqrt()
    assert ((values.mean(dim=0) - drawn.mean(dim=0)).abs() < 4 * error).all()


def test_draws_near_the_expectation_have_its_effects():
    net, inputs = convert(bert(), probattn.BayesianAttention.bam(1e6)), batch()
    mean = attention_effects(net, inputs, method="knockout")
    drawn = attention_effects(net, inputs, method="knockout", num_samples=3)
    torch.testing.assert_close(drawn.effect, mean.effect, rtol=0.0, atol=1e-4)
    assert (drawn.same_sign[mean.effect.abs() > 1e-3] == 1).all()
    torch.testing.assert_close(posterior_expectation(net, inputs), program_for(net)(inputs).detach(), **TIGHT)


def test_a_learned_scale_is_that_of_the_expectation(reweighted):
    net, inputs = convert(bert(), probattn.BayesianAttention(rho=1.5, sigma=0.5)), batch()
    effects = attention_effects(net, inputs, target=(0, 1), method="knockout")
    logits = posterior_expectation(net, inputs)
    torch.testing.assert_close(effects.value[0], logits[:, 0] - logits[:, 1], **TIGHT)
    factor = torch.ones(7, dtype=torch.float64)
    factor[3] = 1e-300
    without = reweighted(net, inputs, dict.fromkeys(effects.by_site, factor))
    change = effects.value[0] - (without[:, 0] - without[:, 1])
    torch.testing.assert_close(effects.effect[:, 3], change, rtol=0.0, atol=1e-9)


def test_networks_that_are_converted_in_part_stay_as_they_are():
    plain, inputs = bert(), batch()
    expected = attention_effects(plain, inputs, method="knockout").effect
    aligned = convert(bert(), probattn.AlignmentAttention("ct"))
    part = convert(bert(), probattn.BayesianAttention(), layers="last").train()
    lora = get_peft_model(bert(), LoraConfig(target_modules=["query"]))
    for net in (aligned, part, lora):
        torch.testing.assert_close(
            attention_effects(net, inputs, method="knockout").effect, expected, **TIGHT
        )
    assert part.training
    assert [call.name for call in conversion(part).calls] == ["bert.encoder.layer.1.attention.self"]
    with pytest.raises(
        ValueError, match="expected latent attention in all layers of BertForSequenceClassification"
    ):
        attention_effects(part, inputs, num_samples=2)


def test_a_network_is_read_anew_when_anything_in_it_changes():
    net, inputs = bert(), batch()
    lora = (
        get_peft_model(bert(), LoraConfig(target_modules=["query"], init_lora_weights=False)).double().eval()
    )
    layer = net.bert.encoder.layer[0]

    def scaled():
        layer.attention.self.scaling *= 4

    def replaced():
        layer.intermediate.forward = lambda states: (
            0.5 * type(layer.intermediate).forward(layer.intermediate, states)
        )

    def grown():
        net.classifier = torch.nn.Linear(16, 2).double()

    def weighted():
        with torch.no_grad():
            layer.attention.self.query.weight.mul_(3.0)

    for network, change in (
        (net, weighted),
        (net, scaled),
        (net, replaced),
        (net, grown),
        (lora, lora.merge_adapter),
        (lora, lora.unmerge_adapter),
        (lora, lora.disable_adapter_layers),
    ):
        attention_effects(network, inputs)
        change()
        effects = attention_effects(network, inputs, method="knockout")
        with torch.no_grad():
            before = log_odds(network(**inputs).logits, effects.answer)
        after = log_odds(masked(network, inputs, 3), effects.answer)
        torch.testing.assert_close(effects.effect[:, 3], before - after, **TIGHT)


def test_a_network_is_not_kept_alive():
    net = bert()
    attention_effects(net, batch())
    alive = weakref.ref(net)
    del net
    gc.collect()
    assert alive() is None


def test_inference_mode_and_threads_change_nothing():
    net, inputs = bert(), batch()
    expected = attention_effects(net, inputs)
    with torch.inference_mode():
        torch.testing.assert_close(attention_effects(net, inputs).effect, expected.effect, **TIGHT)
    with ThreadPoolExecutor(3) as pool:
        for effects in pool.map(lambda _: attention_effects(net, inputs), range(4)):
            torch.testing.assert_close(effects.effect, expected.effect, **TIGHT)


def test_targets_that_are_not_finite_are_refused():
    net = bert(num_labels=3)
    shift = torch.tensor([0.0, -torch.inf, -torch.inf])
    with pytest.raises(ValueError, match="expected a finite target, got inf in row 0"):
        attention_effects(Numbers(net, "softmax", shift), batch())
    with pytest.raises(ValueError, match="expected finite predictions, got NaN or infinity in 3 of 3 rows"):
        attention_effects(Numbers(net, "softmax", shift * torch.nan), batch())


def test_rows_of_a_loader_have_no_targets_of_their_own():
    rows = [{name: item[row] for name, item in batch().items()} for row in range(3)]
    for options in ({"target": torch.tensor([0, 1, 0])}, {"words": [[0] * 7] * 3}):
        with pytest.raises(ValueError, match="those of one batch"):
            attention_effects(bert(), torch.utils.data.DataLoader(rows, batch_size=2), **options)
    loader = torch.utils.data.DataLoader(rows, batch_size=3)
    with pytest.raises(ValueError, match="those of one batch"):
        attention_effects(bert(BertForTokenClassification), loader, position=torch.tensor([0, 1, 2]))


def test_two_networks_of_one_model_are_refused():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = bert(), bert()

        def forward(self, batch):
            return self.a(**batch).logits + self.b(**batch).logits

    with pytest.raises(ValueError, match="expected one Hugging Face network"):
        attention_effects(Two(), batch())


def test_batches_of_a_loader_are_joined():
    net, inputs = bert(), batch()
    rows = [{name: item[row] for name, item in inputs.items()} for row in range(3)]
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    whole, joined = (attention_effects(net, data, method="knockout") for data in (inputs, loader))
    torch.testing.assert_close(joined.effect, whole.effect, **TIGHT)
    assert str(joined) == str(whole)
    assert str(whole).splitlines()[0] == "AttentionEffects(3 rows, 7 tokens or words)"


def test_words_are_printed_with_their_signs():
    slopes = torch.tensor([[[0.5, -0.2, 0.004, torch.nan]] * 4])
    none, of_rows = torch.full((4, 4), torch.nan), torch.zeros(4, dtype=torch.int64)
    rest = (none, of_rows, of_rows, of_rows.float(), torch.full((4, 4), -1))
    effects = AttentionEffects(
        torch.zeros(1, 4), slopes, slopes * torch.nan, *rest, {}, torch.zeros(4, 4).long()
    )
    assert repr(effects).splitlines() == [
        "AttentionEffects(4 rows, 4 tokens or words)",
        *(f"  row {row}: for 0 +0.50; against 1 -0.20" for row in range(3)),
        "  ...",
    ]
    wide = torch.full((1, 1, 2_000), 123456.0) * torch.tensor([1.0, -1.0]).repeat(1_000)
    further = {"change": wide[0] * torch.nan, "answer_without": wide[0].long()}
    large = dataclasses.replace(
        effects, slopes=wide, knockouts=wide * torch.nan, answer=of_rows[:1], **further
    )
    assert all(len(line) <= 80 for line in repr(large).splitlines())
    empty = dataclasses.replace(effects, slopes=slopes[:, :0], knockouts=slopes[:, :0], answer=of_rows[:0])
    assert repr(empty) == "AttentionEffects(0 rows, 4 tokens or words)"


def test_half_precision_and_float32_agree_with_float64():
    net, inputs = bert(), batch()
    expected = attention_effects(net, inputs, method="knockout")
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
        effects = attention_effects(copy.deepcopy(net).to(dtype), inputs, method="knockout")
        torch.testing.assert_close(effects.effect.double(), expected.effect, rtol=0.0, atol=tolerance)
        torch.testing.assert_close(effects.slope.double(), expected.slope, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "deletion"}, "method: expected"),
        ({"target": "certainty"}, "target"),
        ({"target": 2}, r"expected a target among 0\.\.1, or a pair of them, got 2"),
        ({"target": torch.tensor([0, 1])}, r"expected one target, or int64 \[3\] by row"),
        ({"target": torch.tensor([0.0, 1.0, 0.0])}, "expected one target, or int64"),
        ({"target": torch.tensor(1)}, "expected one target, or int64"),
        ({"words": [[10**7] * 7] * 3}, r"numbered 0\.\.6"),
        ({"words": [[0], [0, 1]]}, "expected the words of 3 rows"),
        ({"target": lambda z: z.argmax(1).double()}, "has no derivative"),
        ({"target": lambda z: z}, r"to numbers \[3\], got \[3, 2\]"),
        ({"position": 0}, "expected a position among none"),
        ({"words": [[0, 1]] * 3}, r"expected words int64 \[3, 7\]"),
        ({"words": [[None] * 7] * 3}, "expected words of some tokens"),
        ({"sites": "decoder"}, "the network has no such attention calls"),
        ({"sites": ["bert"]}, r"expected sites of the model, got \['bert'\]; a pass met bert.encoder"),
        ({"num_samples": 0}, "num_samples"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        attention_effects(bert(), batch(), **options)


@pytest.mark.parametrize("target", [True, 1.5, (1, 2, 3), None])
def test_targets_of_another_kind_are_refused(target):
    with pytest.raises(TypeError, match="expected as target 'answer', 'doubt', a class"):
        attention_effects(bert(), batch(), target=target)


def test_predictions_of_several_positions_need_one():
    with pytest.raises(ValueError, match="expected one prediction a row"):
        attention_effects(bert(BertForTokenClassification), batch())
    with pytest.raises(ValueError, match="numbers have no entropy"):
        attention_effects(Numbers(bert(), "identity"), batch(), target="doubt")
