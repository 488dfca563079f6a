"""Scores and their normalisation against loops."""

import math

import numpy as np
import pytest
import torch

from probattn.sites import AttentionMask
from probattn.sites.scores import attention_scores, repeat_heads


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("biased", [False, True])
def test_scores_are_the_definition(scale, softcap, biased):
    """The cap bounds the products; the bias is added to what it leaves."""
    query, key, bias = normal(2, 3, 4, 5), normal(2, 3, 6, 5, seed=1), 2 * normal(1, 3, 4, 6, seed=2)
    found = attention_scores(query, key, scale=scale, softcap=softcap, bias=bias if biased else None)
    for place in np.ndindex(2, 3, 4, 6):
        b, h, t, s = place
        value = sum(query[b, h, t, d].item() * key[b, h, s, d].item() for d in range(5))
        value *= 1 / math.sqrt(5) if scale is None else scale
        value = value if softcap is None else softcap * math.tanh(value / softcap)
        value += bias[0, h, t, s].item() if biased else 0
        assert found[place].item() == pytest.approx(value)


def test_forbidden_pairs_get_no_weight_and_empty_rows_none_at_all():
    valid = torch.ones(2, 1, 3, 4, dtype=torch.bool)
    valid[0, 0, 1], valid[1, 0, :, 2] = False, False
    mask = AttentionMask(valid)
    query, key = normal(2, 2, 3, 5), normal(2, 2, 4, 5, seed=1)
    weights = mask.weights(attention_scores(query, key, mask))
    plain = attention_scores(query, key).exp() * valid
    expected = plain / plain.sum(-1, keepdim=True).clamp_min(1e-300)
    torch.testing.assert_close(weights, expected)
    assert bool((weights[0, :, 1] == 0).all())


def test_low_precision_is_computed_in_float32():
    query = normal(1, 1, 2, 4).to(torch.bfloat16)
    assert attention_scores(query, query).dtype == torch.float32


def test_key_heads_serve_neighbouring_query_heads():
    tensor = normal(1, 2, 3, 4)
    repeated = repeat_heads(tensor, 6)
    for head in range(6):
        assert torch.equal(repeated[:, head], tensor[:, head // 3])
    assert repeat_heads(tensor, 2) is tensor
    with pytest.raises(ValueError, match="divide 5 query heads, got 2"):
        repeat_heads(tensor, 5)
