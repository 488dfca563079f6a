"""Kendall's tau against scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from probattn.probes import kendall, kendall_tau


@settings(deadline=None, max_examples=60)
@given(length=st.integers(2, 60), levels=st.integers(2, 100), seed=st.integers(0, 10_000))
def test_it_is_that_of_scipy(length, levels, seed):
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.randint(levels, (2, 5, length), generator=generator).float()
    mask = torch.rand(5, length, generator=generator) < 0.8
    found = kendall_tau(u, v, mask)
    for row in range(5):
        kept = [each[row][mask[row]].numpy() for each in (u, v)]
        if len(kept[0]) < 2 or any(len(np.unique(each)) < 2 for each in kept):
            assert found[row].isnan()
        else:
            assert found[row].item() == pytest.approx(kendalltau(*kept).statistic, abs=1e-12)


def test_rows_are_taken_a_few_at_a_time(monkeypatch):
    u, v = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(0))
    whole = kendall_tau(u, v)
    monkeypatch.setattr(kendall, "_PAIRS", 9 * 9 * 2)
    torch.testing.assert_close(kendall_tau(u, v), whole)
    assert whole.shape == (3, 7)


def test_infinite_ratings_are_ranked():
    u = torch.tensor([-torch.inf, -torch.inf, 0.0, torch.inf])
    assert kendall_tau(u, torch.tensor([1.0, 1.0, 2.0, 3.0])) == 1


def test_rows_that_have_no_order():
    assert kendall_tau(torch.ones(4), torch.rand(4)).isnan()
    assert kendall_tau(torch.rand(1), torch.rand(1)).isnan()
    assert kendall_tau(torch.rand(2, 0), torch.rand(2, 0)).isnan().all()
    assert kendall_tau(torch.rand(0, 4), torch.rand(0, 4)).shape == (0,)
