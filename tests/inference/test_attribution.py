"""Sums of attributed uncertainty, leading pairs, and predictions with more or less attention somewhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf

import probattn
from probattn.inference import (
    Moments,
    leading_pairs,
    posterior_expectation,
    posterior_moments,
    reweighted_expectation,
    share_by,
)
from probattn.models import convert

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}
METHODS = {
    "babn": probattn.BayesianAttention(),
    "raw": probattn.BayesianAttention(scores="raw"),
    "bam": probattn.BayesianAttention.bam(3.0),
    "lognormal": probattn.BayesianAttention(posterior="lognormal"),
}


def network(method, layers=2):
    torch.manual_seed(0)
    config = hf.BertConfig(**SIZES, num_hidden_layers=layers, initializer_range=0.3)
    return convert(hf.BertForSequenceClassification(config), method).eval()


def rows(number=3, length=8):
    ids = torch.randint(3, 40, (number, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, length - 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def difference(logits, classes):
    pair = logits.gather(-1, classes)
    return pair[:, 0] - pair[:, 1]


@pytest.fixture(params=METHODS)
def method(request):
    return METHODS[request.param]


def test_sums_are_those_of_numpy_and_add_to_one():
    moments = posterior_moments(network(METHODS["babn"]), rows(), attribution=True, method="expansion")
    maps = np.stack([share.numpy() for share in moments.noise_share.values()], axis=1)  # [B, L, H, T, S]
    for parts, axes in ((("key",), (1, 2, 3)), (("head", "site"), (3, 4)), (("query",), (1, 2, 4))):
        np.testing.assert_allclose(
            share_by(moments.noise_share, *parts), maps.sum(axis=axes), rtol=1e-5, atol=1e-7
        )
    np.testing.assert_allclose(share_by(moments.noise_share), np.ones(3), rtol=1e-5)
    assert not share_by(moments.noise_share, "key")[0, 5:].any(), "padding has no share"


def test_slopes_are_derivatives_by_common_factors_through_the_whole_network(method):
    net, batch = network(method).double(), rows()
    moments = posterior_moments(net, batch, attribution=True, method="expansion", classes=2)
    slopes, step = share_by(moments.slope, "key"), 1e-4
    for key in (0, 3):
        ends = []
        for sign in (1, -1):
            factor = torch.ones(8, dtype=torch.float64)
            factor[key] = np.exp(sign * step)
            logits = reweighted_expectation(net, batch, dict.fromkeys(moments.slope, factor))
            ends.append(difference(logits, moments.classes))
        torch.testing.assert_close((ends[0] - ends[1]) / (2 * step), slopes[:, key], rtol=1e-4, atol=1e-8)


def test_a_factor_that_all_keys_share_changes_nothing(method):
    net, batch = network(method), rows()
    moments = posterior_moments(net, batch, attribution=True, method="expansion")
    same = reweighted_expectation(net, batch, dict.fromkeys(moments.noise_share, torch.tensor(3.0)))
    torch.testing.assert_close(same, posterior_expectation(net, batch))
    for name, slope in moments.slope.items():
        largest = float(slope.abs().max())
        torch.testing.assert_close(
            slope.sum(dim=-1), torch.zeros_like(slope[..., 0]), atol=1e-4 * largest, rtol=0, msg=name
        )


def test_hardly_any_attention_to_a_token_is_as_a_mask_over_it(method):
    net, batch = network(method, layers=1), rows()
    (site,) = posterior_moments(net, batch, attribution=True, method="expansion").noise_share
    factor = torch.ones(8)
    factor[3] = 1e-12
    masked = batch["attention_mask"].clone()
    masked[:, 3] = 0
    torch.testing.assert_close(
        reweighted_expectation(net, batch, {site: factor}),
        posterior_expectation(net, batch | {"attention_mask": masked}),
    )


def test_leading_pairs_are_those_that_numpy_sorts():
    moments = posterior_moments(network(METHODS["bam"]), rows(), attribution=True, method="expansion")
    for row, pairs in enumerate(leading_pairs(moments, 5)):
        flat = [
            (float(value), name, *place)
            for name in moments.noise_share
            for place, value in np.ndenumerate(moments.noise_share[name][row].numpy())
        ]
        expected = sorted(flat, key=lambda each: -each[0])[:5]
        assert [(pair.noise_share, pair.site, pair.head, pair.query, pair.key) for pair in pairs] == expected
        assert all(
            pair.slope == float(moments.slope[pair.site][row, pair.head, pair.query, pair.key])
            for pair in pairs
        )


def test_leading_pairs_of_a_batch_of_one_row_are_those_of_the_row_in_a_batch():
    net, batch = network(METHODS["bam"]), rows()
    pairs = leading_pairs(posterior_moments(net, batch, attribution=True, method="expansion"), 4)[2]
    alone = {name: value[2:] for name, value in batch.items()}
    (own,) = leading_pairs(posterior_moments(net, alone, attribution=True, method="expansion"), 4)
    for pair, other in zip(own, pairs, strict=True):
        assert pair[:4] == other[:4] and pair.noise_share == pytest.approx(other.noise_share, rel=1e-3)


def test_what_cannot_be_summed_ranked_or_changed_is_refused():
    net = network(METHODS["bam"])
    plain = posterior_moments(net, rows(), method="expansion")
    moments = posterior_moments(net, rows(), attribution=True, method="expansion")
    with pytest.raises(ValueError, match="expected shares, got none"):
        leading_pairs(plain)
    with pytest.raises(ValueError, match="expected shares, got none"):
        leading_pairs(replace(moments, slope=None))
    with pytest.raises(ValueError, match="got 'layer'"):
        share_by(moments.noise_share, "layer", "depth")
    with pytest.raises(ValueError, match="no maps"):
        share_by({}, "key")
    first, *_ = moments.noise_share.values()
    with pytest.raises(ValueError, match="agree in what is kept"):
        share_by({"one": first, "other": first[..., :3]}, "key")
    with pytest.raises(ValueError, match="expected sites of this model, got 'encoder'"):
        reweighted_expectation(net, rows(), dict.fromkeys(("other", "encoder"), torch.ones(8)))
    for bad in (0.0, -1.0, torch.inf, torch.nan):
        factors = dict.fromkeys(moments.noise_share, torch.ones(8)) | {
            [*moments.noise_share][-1]: torch.tensor([1.0, bad])
        }
        with pytest.raises(
            ValueError, match=rf"{[*moments.noise_share][-1]}: expected factors above 0 and finite"
        ):
            reweighted_expectation(net, rows(), factors)
    with pytest.raises(ValueError, match=r"leading_pairs.number: expected an integer >= 1, got 0"):
        leading_pairs(moments, 0)
    several = replace(
        moments, noise_share={name: value[:, None] for name, value in moments.noise_share.items()}
    )
    with pytest.raises(ValueError, match=r"expected shares \[B, H, T, S\], got \[\[3, 1, 2, 8, 8\]"):
        leading_pairs(several)


def test_pairs_of_sites_of_other_sizes_are_told_by_their_places():
    share = {"one": torch.tensor([[[[0.1, 0.3], [0.0, 0.05]]]]), "other": torch.zeros(1, 2, 3, 3)}
    share["other"][0, 1, 2, 0], share["other"][0, 0, 1, 2] = 0.35, 0.2
    slope = {name: -value for name, value in share.items()}
    empty = torch.zeros(1, 2)
    moments = Moments(empty, torch.tensor([[0, 1]]), torch.zeros(1, 2, 2), noise_share=share, slope=slope)
    (pairs,) = leading_pairs(moments, 4)
    places = [("other", 1, 2, 0), ("one", 0, 0, 1), ("other", 0, 1, 2), ("one", 0, 0, 0)]
    assert [pair[:4] for pair in pairs] == places
    assert [pair.noise_share for pair in pairs] == pytest.approx([0.35, 0.3, 0.2, 0.1])
    assert [pair.slope for pair in pairs] == pytest.approx([-0.35, -0.3, -0.2, -0.1])


def test_ten_pairs_lead_unless_another_number_is_named_and_all_of_fewer():
    moments = posterior_moments(network(METHODS["bam"]), rows(), attribution=True, method="expansion")
    assert [len(pairs) for pairs in leading_pairs(moments)] == [10] * 3
    assert leading_pairs(moments) == leading_pairs(moments, 10)
    every = leading_pairs(moments, 1000)
    assert [len(pairs) for pairs in every] == [2 * 2 * 8 * 8] * 3
    for pairs in every:
        shares = [pair.noise_share for pair in pairs]
        assert shares == sorted(shares, reverse=True) and len({pair[:4] for pair in pairs}) == 256


@pytest.mark.parametrize(
    "parts", [("site",), ("head",), ("query", "key"), ("site", "head", "query", "key"), ()]
)
def test_sums_of_maps_with_positions_keep_them(parts):
    """Of two predictions a row, and with the parts in any order."""
    maps = {
        name: torch.rand(3, 2, 4, 5, 6, generator=torch.Generator().manual_seed(seed))
        for seed, name in enumerate("ab")
    }
    whole = np.stack([value.numpy() for value in maps.values()], axis=2)  # [B, N, L, H, T, S]
    axes = tuple(
        index + 2 for index, part in enumerate(("site", "head", "query", "key")) if part not in parts
    )
    for order in (parts, parts[::-1]):
        np.testing.assert_allclose(share_by(maps, *order), whole.sum(axis=axes), rtol=1e-5)
