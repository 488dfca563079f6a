"""ELECTRA as a program: its loss by transformers' own, its draws, its gradients, padding."""

from __future__ import annotations

import math

import pytest
import torch
from pyro import poutine
from scipy import stats
from torch import Tensor
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from probattn import BayesianAttention, RepulsiveAttention
from probattn.inference import AttentionELBO, AttentionGuide
from probattn.models import ElectraProgram, convert
from probattn.models.electra import draw_masked, draw_tokens
from probattn.sites.repulsive import repulsive_heads

WORDS, PAD, BEGIN, END, MASK = 30, 0, 2, 3, 4
SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": WORDS,
    "embedding_size": 6,
    "max_position_embeddings": 16,
    "initializer_range": 0.3,
}


def program(*methods: object, layers: object = "all", **options: object) -> ElectraProgram:
    torch.manual_seed(0)
    net = ElectraForPreTraining(ElectraConfig(hidden_size=8, intermediate_size=8, **SIZES))
    generator = ElectraForMaskedLM(ElectraConfig(hidden_size=4, intermediate_size=4, **SIZES))
    if methods:
        convert(net, *methods, layers=layers)
    return ElectraProgram(net, generator, mask_id=MASK, special_ids=(PAD, BEGIN, END), **options).eval()


def texts(lengths: tuple[int, ...] = (9, 6, 3), width: int = 9) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.full((len(lengths), width), PAD)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, WORDS, (length,), generator=draw)
        ids[row, 0], ids[row, length - 1] = BEGIN, END
    return {"original_ids": ids, "attention_mask": (ids != PAD).long()}


def loss(model: ElectraProgram, batch: dict[str, Tensor], seed: int = 3) -> Tensor:
    torch.manual_seed(seed)
    return AttentionELBO()(model, AttentionGuide(model))(batch).loss


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_is_that_of_transformers_own_classes(tied: bool) -> None:
    model, batch = program(tied=tied, weight=7.0), texts()
    torch.manual_seed(3)
    found = model.corrupted(batch)
    real = batch["attention_mask"]
    labels = batch["original_ids"].where(found.masked, -100)
    seen = batch["original_ids"].where(~found.masked, MASK)
    theirs = model.generator(input_ids=seen, attention_mask=real, labels=labels).loss
    own = model.net(input_ids=found.input_ids, attention_mask=real, labels=found.replaced.long()).loss
    assert found.replaced.any()
    torch.testing.assert_close(loss(model, batch), theirs + 7 * own)


@pytest.mark.parametrize("methods", [(), (BayesianAttention(),)])
def test_given_mean_numbers_of_tokens_take_the_place_of_the_batchs(methods: tuple[object, ...]) -> None:
    """Of the divergence of latent attention too."""
    batch = texts((9, 9, 9))
    masked = math.ceil(0.15 * 7)
    usual = loss(program(*methods), batch)
    given = program(*methods, mean_length=9.0, mean_masked=masked, num_data=50)
    torch.testing.assert_close(loss(given, batch), usual)
    # Half as many tokens of either kind: twice the loss.
    half = program(*methods, mean_length=4.5, mean_masked=masked / 2)
    torch.testing.assert_close(loss(half, batch), 2 * usual)


@pytest.mark.parametrize("mean_length", [None, 5.0])
def test_detection_alone_has_the_scales_of_both(mean_length: float | None) -> None:
    model, batch = program(BayesianAttention(), mean_length=mean_length, num_data=12), texts()
    found = model.corrupted(batch)
    alone = {"input_ids": found.input_ids, "attention_mask": batch["attention_mask"]}
    traces = [poutine.trace(model).get_trace(each) for each in (batch, alone | {"replaced": found.replaced})]
    scales = [{n: s["scale"] for n, s in trace.nodes.items() if s["type"] == "sample"} for trace in traces]
    assert len(scales[1]) == 4  # the plate, a site a layer, and what is observed
    assert all(scales[0][name] == pytest.approx(scale) for name, scale in scales[1].items())
    assert model.observations(batch) == 3 == model.observations(alone | {"replaced": found.replaced})
    with pytest.raises(ValueError, match="expected replaced in the batch"):
        model.observations(alone)


def test_padding_changes_nothing() -> None:
    short, long = texts(), texts(width=14)
    masked = draw_masked(program().candidates(short), 0.4, torch.Generator().manual_seed(0))
    wide = torch.nn.functional.pad(masked, (0, 5))
    model = program()
    torch.testing.assert_close(loss(model, short | {"masked": masked}), loss(model, long | {"masked": wide}))


def test_special_tokens_and_padding_are_never_masked_and_the_number_is_the_papers() -> None:
    model, batch = program(mask_probability=0.3), texts()
    for seed in range(20):
        torch.manual_seed(seed)
        found = model.corrupted(batch)
        assert not (found.masked & ~model.candidates(batch)).any()
        assert found.masked.sum(dim=1).tolist() == [math.ceil(0.3 * n) for n in (7, 4, 1)]
        assert (found.input_ids == batch["original_ids"])[~found.masked].all()
        assert torch.equal(found.targets[found.targets >= 0], batch["original_ids"][found.masked])
        assert torch.equal(found.replaced, found.input_ids != batch["original_ids"])


def test_special_tokens_are_no_candidates() -> None:
    batch = {"original_ids": torch.tensor([[BEGIN, 7, MASK, 8, END, PAD]])}
    assert program().candidates(batch)[0].tolist() == [False, True, False, True, False, False]
    assert program().special.tolist() == [PAD, BEGIN, END, MASK]


def test_every_token_is_masked_equally_often() -> None:
    candidates = torch.tensor([[False, *[True] * 10, False]]).repeat(4000, 1)
    shares = draw_masked(candidates, 0.2, torch.Generator().manual_seed(0)).float().mean(dim=0)
    assert shares[0] == shares[-1] == 0
    assert (shares[1:-1] - 0.2).abs().max() < 5 * math.sqrt(0.2 * 0.8 / 4000)


def test_replacements_have_the_generators_distribution() -> None:
    model = program()
    batch = {name: value[:1].repeat(6000, 1) for name, value in texts().items()}
    masked = torch.zeros_like(batch["original_ids"], dtype=torch.bool)
    masked[:, 2] = True
    torch.manual_seed(0)
    with torch.no_grad():
        found = model.corrupted(batch | {"masked": masked})
    expected = found.logits[0, 0].softmax(dim=-1)
    shares = torch.bincount(found.input_ids[:, 2], minlength=WORDS) / 6000
    assert (shares - expected).abs().max() < 5 * math.sqrt(0.25 / 6000)


@pytest.mark.slow_but("dtype0")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_of_many_tokens_have_their_probabilities(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(2, 1000, generator=generator)).to(dtype)
    logits[:, ::2] = -torch.inf  # the first one too
    logits[0, 500:], logits[1, :500] = -torch.inf, -torch.inf
    drawn = draw_tokens(logits[:, None].expand(2, 50_000, 1000), generator)
    assert drawn.shape == (2, 50_000) and drawn.dtype == torch.int64
    assert draw_tokens(logits[:, None].expand(2, 3, 1000).to("meta")).shape == (2, 3)  # another device
    for row, probabilities in zip(drawn, logits.double().softmax(dim=-1), strict=True):
        counts, expected = torch.bincount(row, minlength=1000), 50_000 * probabilities
        assert not counts[expected == 0].any()
        rare = expected < 5
        tested = [torch.cat([each[~rare], each[rare].sum()[None]]).numpy() for each in (counts, expected)]
        assert stats.chisquare(*tested).pvalue > 1e-3


def test_gradients_reach_every_parameter_and_none_goes_through_the_draws() -> None:
    model, batch = program(tied=False).train(), texts()
    loss(model, batch).backward()
    without = {
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    }
    # A head attends to other tokens by differences of scores, which the bias of keys leaves as they are.
    assert all(name.endswith("key.bias") for name in without), without
    # An untied generator learns from its own part of the loss alone.
    alone = program(tied=False).train()
    torch.manual_seed(3)
    found = alone.corrupted(batch)
    torch.nn.functional.cross_entropy(
        found.logits.flatten(0, 1), found.targets.flatten(), reduction="mean"
    ).backward()
    for own, expected in zip(model.generator.parameters(), alone.generator.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad)


def test_embeddings_are_one_and_learn_from_both_parts() -> None:
    model = program()
    theirs, own = model.net.electra.embeddings, model.generator.electra.embeddings
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        assert getattr(theirs, name).weight is getattr(own, name).weight
        names = [each for each, _ in model.named_parameters() if name in each]
        assert names == [f"net.electra.embeddings.{name}.weight"]
    assert model.generator.generator_lm_head.weight is theirs.word_embeddings.weight


def test_equal_seeds_give_equal_draws_and_others_do_not() -> None:
    model, batch = program(), texts()
    assert loss(model, batch, 5) == loss(model, batch, 5) != loss(model, batch, 6)


def test_the_sites_of_a_call() -> None:
    trace = poutine.trace(program(num_data=12)).get_trace(texts())
    observed = [name for name, site in trace.nodes.items() if site.get("is_observed")]
    assert observed == ["masked", "replaced"]
    assert trace.nodes["replaced"]["scale"] == pytest.approx(50 * (12 / 3) / 6)
    given = {"input_ids": texts()["original_ids"], "attention_mask": texts()["attention_mask"]}
    assert program()(given).shape == (3, 9)


def test_methods_are_the_discriminators() -> None:
    repulsive = program(RepulsiveAttention(), layers=[0])
    assert len(repulsive_heads(repulsive)) == 3
    latent = program(BayesianAttention())
    trace = poutine.trace(latent).get_trace(texts())
    latents = [n for n, s in trace.nodes.items() if s["type"] == "sample" and not s["is_observed"]]
    assert [name for name in latents if name != "data"] and torch.isfinite(loss(latent, texts()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask_probability": 1.0}, "mask_probability"),
        ({"weight": 0.0}, "weight"),
        ({"mean_length": -1.0}, "mean_length"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=f"ElectraProgram.*{words}"):
        program(**options)


def test_networks_that_do_not_fit_are_refused() -> None:
    net = ElectraForPreTraining(ElectraConfig(hidden_size=8, intermediate_size=8, **SIZES))
    for change, words in (
        ({"vocab_size": 31}, "vocab_size 30"),
        ({"embedding_size": 4}, "one embedding_size"),
    ):
        other = ElectraForMaskedLM(ElectraConfig(hidden_size=4, intermediate_size=4, **SIZES | change))
        with pytest.raises(ValueError, match=words):
            ElectraProgram(net, other, mask_id=MASK, special_ids=())
    for given in ({"mask_id": WORDS, "special_ids": ()}, {"mask_id": MASK, "special_ids": (-1,)}):
        with pytest.raises(ValueError, match=r"mask_id and special_ids in 0\.\.29"):
            ElectraProgram(net, program().generator, **given, tied=False)
    with pytest.raises(ValueError, match=r"original_ids in 0\.\.29"):
        program()({"original_ids": torch.full((1, 3), 30)})


@pytest.mark.parametrize(
    "masked",
    [
        torch.ones(3, 9, dtype=torch.long),
        torch.ones(3, 8, dtype=torch.bool),
        torch.ones(3, 9, dtype=torch.bool),
    ],
)
def test_given_masks_are_checked(masked: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected bool \[3, 9\] as masked, False at padding"):
        program()(texts() | {"masked": masked})
