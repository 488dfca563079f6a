"""Masks against loops over pairs."""

import itertools

import pytest
import torch

from probattn.sites import AttentionMask


def masks():
    """Padding, causal with padding, a mask for each head, a query that sees nothing, a key that only padding sees."""
    real = torch.tensor([[True, True, False], [True, True, True]])
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    generator = torch.Generator().manual_seed(0)
    by_head = torch.rand(2, 2, 3, 3, generator=generator) < 0.6
    empty = by_head.clone()
    empty[0, 1, 2] = False
    return {
        "padding": AttentionMask(real[:, None, None, :], real),
        "causal": AttentionMask(real[:, None, None, :] & causal, real),
        "by head": AttentionMask(by_head),
        "empty": AttentionMask(empty, real),
        "last key": AttentionMask(
            causal.expand(2, 1, 3, 3), real
        ),  # in the first row a padded query alone sees it
    }


@pytest.fixture(params=["padding", "causal", "by head", "empty", "last key"])
def mask(request):
    return masks()[request.param]


def test_what_is_derived_is_what_a_loop_over_pairs_finds(mask):
    valid = mask.valid.expand(2, mask.valid.shape[1], 3, 3)
    real = torch.ones(2, 3, dtype=torch.bool) if mask.query_valid is None else mask.query_valid
    seen = torch.zeros(2, valid.shape[1], 3, dtype=torch.bool)
    for b, h, t, s in itertools.product(*map(range, valid.shape)):
        allowed = bool(valid[b, h, t, s])
        pair = allowed and bool(real[b, t])
        seen[b, h, s] |= pair
        assert mask.pair_weight.expand_as(valid)[b, h, t, s] == pair
        assert mask.pair_valid.expand_as(valid)[b, h, t, s] == pair
        assert (mask.additive.expand_as(valid)[b, h, t, s] == 0) == allowed
        assert mask.valid_weight.expand_as(valid)[b, h, t, s] == allowed
    assert torch.equal(mask.key_valid, seen)
    rows = valid.any(-1)
    assert torch.equal(mask.row_weight.squeeze(-1).expand_as(rows).bool(), rows)
    assert mask.has_empty_rows == (not bool(rows.all()))
    assert mask.rows_alike == bool((valid == valid[:, :, :1]).all())


def test_the_cases_differ_in_what_they_are():
    found = masks()
    assert [found[name].rows_alike for name in found] == [True, False, False, False, False]
    assert found["empty"].has_empty_rows and not found["causal"].has_empty_rows


@pytest.mark.parametrize(
    ("valid", "query_valid", "error", "message"),
    [
        (
            torch.ones(2, 1, 1, 3),
            None,
            TypeError,
            r"valid: expected bool \(True = attend\), got torch.float32",
        ),
        (
            torch.ones(2, 1, 3).bool(),
            None,
            ValueError,
            r"valid: expected \[B, 1 or H, 1 or T, S\], got shape \[2, 1",
        ),
        (torch.ones(2, 1, 1, 3).bool(), torch.ones(2, 4), TypeError, "query_valid: expected bool, got"),
        (
            torch.ones(2, 1, 1, 3).bool(),
            torch.ones(4).bool(),
            ValueError,
            r"query_valid: expected \[B, T\], got shape",
        ),
        (
            torch.ones(2, 1, 1, 3).bool(),
            torch.ones(3, 4).bool(),
            ValueError,
            "expected 2 rows as in valid, got 3",
        ),
    ],
)
def test_what_is_no_mask_is_refused(valid, query_valid, error, message):
    with pytest.raises(error, match=rf"AttentionMask\..*{message}"):
        AttentionMask(valid, query_valid)


def test_counts_are_those_of_each_reduction_and_shape():
    valid = torch.tensor([[True, True, False], [True, False, False]])
    mask = AttentionMask(valid[:, None, None, :], query_valid=torch.tensor([[True, True], [True, False]]))
    for _ in range(2):  # the second time they are kept
        for heads in (1, 4):
            shape = torch.Size([2, heads, 2, 3])
            assert mask.count("mean", shape).tolist() == [4 * heads, heads]
            assert mask.count("keys", shape).tolist() == [2 * heads, heads]
