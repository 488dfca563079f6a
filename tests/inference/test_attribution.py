"""Sums of attributed uncertainty, and its slopes as derivatives of predictions with more or less attention."""

import numpy as np
import pytest
import torch
import transformers as hf

import probattn
from probattn.inference import (
    posterior_expectation,
    posterior_moments,
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


def test_slopes_are_derivatives_by_common_factors_through_the_whole_network(method, reweighted):
    net, batch = network(method).double(), rows()
    moments = posterior_moments(net, batch, attribution=True, method="expansion", classes=2)
    slopes, step = share_by(moments.slope, "key"), 1e-4
    for key in (0, 3):
        ends = []
        for sign in (1, -1):
            factor = torch.ones(8, dtype=torch.float64)
            factor[key] = np.exp(sign * step)
            logits = reweighted(net, batch, dict.fromkeys(moments.slope, factor))
            ends.append(difference(logits, moments.classes))
        torch.testing.assert_close((ends[0] - ends[1]) / (2 * step), slopes[:, key], rtol=1e-4, atol=1e-8)


def test_a_factor_that_all_keys_share_changes_nothing(method, reweighted):
    net, batch = network(method), rows()
    moments = posterior_moments(net, batch, attribution=True, method="expansion")
    same = reweighted(net, batch, dict.fromkeys(moments.noise_share, torch.tensor(3.0)))
    torch.testing.assert_close(same, posterior_expectation(net, batch))
    for name, slope in moments.slope.items():
        largest = float(slope.abs().max())
        torch.testing.assert_close(
            slope.sum(dim=-1), torch.zeros_like(slope[..., 0]), atol=1e-4 * largest, rtol=0, msg=name
        )


def test_hardly_any_attention_to_a_token_is_as_a_mask_over_it(method, reweighted):
    net, batch = network(method, layers=1), rows()
    (site,) = posterior_moments(net, batch, attribution=True, method="expansion").noise_share
    factor = torch.ones(8)
    factor[3] = 1e-12
    masked = batch["attention_mask"].clone()
    masked[:, 3] = 0
    torch.testing.assert_close(
        reweighted(net, batch, {site: factor}),
        posterior_expectation(net, batch | {"attention_mask": masked}),
    )


def test_what_cannot_be_summed_is_refused():
    moments = posterior_moments(network(METHODS["bam"]), rows(), attribution=True, method="expansion")
    with pytest.raises(ValueError, match="got 'layer'"):
        share_by(moments.noise_share, "layer", "depth")
    with pytest.raises(ValueError, match="no maps"):
        share_by({}, "key")
    first, *_ = moments.noise_share.values()
    with pytest.raises(ValueError, match="agree in what is kept"):
        share_by({"one": first, "other": first[..., :3]}, "key")


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
