"""Attention as a function: the forms of its mask, and what it refuses."""

import pytest
import torch

from probattn import BayesianAttention, attention
from probattn.sites import AttentionMask

METHOD = BayesianAttention.bam(prior="constant")
KEYS = torch.tensor([[True, True, True, False, False], [True, False, True, True, True]])


def tensors():
    generator = torch.Generator().manual_seed(0)
    sizes = (4, 5, 5)
    return [torch.randn(2, 3, size, 6, generator=generator, dtype=torch.float64) for size in sizes]


def softmax_attention(query, key, value, valid):
    """What the posterior's expectation is: masked softmax of the scaled scores."""
    scores = (query @ key.mT / 6**0.5).masked_fill(~valid, -torch.inf)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


@pytest.mark.parametrize(
    "mask",
    [
        KEYS,
        KEYS[:, None, None, :],
        KEYS[:, None, None, :].expand(2, 3, 4, 5),
        KEYS[:1, None, None, :],
        torch.ones(4, 5, dtype=torch.bool).tril()[None, None],
        AttentionMask(KEYS[:, None, None, :]),
    ],
    ids=["keys", "broadcast", "full", "one for all", "causal", "made"],
)
def test_a_mask_of_any_form_leaves_the_softmax_over_what_it_allows(mask):
    query, key, value = tensors()
    valid = mask.valid if isinstance(mask, AttentionMask) else mask
    expected = softmax_attention(query, key, value, valid[:, None, None] if valid.dim() == 2 else valid)
    with torch.no_grad():
        found = attention("attend", query, key, value, mask, method=METHOD)
    for have, want in zip(found, expected, strict=True):
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("shape", [(5,), (2, 4), (3, 5), (2, 4, 5), (2, 3, 4), (2, 2, 4, 5), (1, 2, 3, 4, 5)])
def test_a_mask_that_does_not_fit_is_refused(shape):
    message = r"'attend': expected a mask \[B, S\] or broadcastable to \[2, 3, 4, 5\], got"
    with pytest.raises(ValueError, match=message):
        attention("attend", *tensors(), torch.ones(shape, dtype=torch.bool), method=METHOD)
