"""Additive masks of the hosts as validity."""

import pytest
import torch
from torch import nn

from probattn.models.hosts.eager import (
    carries_bias,
    count_windows,
    in_batch,
    own_keys,
    read_mask,
    valid_pairs,
    windows_to_heads,
)

FORBIDDEN = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


class Shifted(nn.Module):
    """Stands in for Swin's attention: known by the file that defines it."""


Shifted.__module__ = "transformers.models.swin.modeling_swin"


@pytest.mark.parametrize("dtype", FORBIDDEN)
@pytest.mark.parametrize("forbidden", ["min", "inf", "half"])
def test_forbidden_pairs_of_every_type(dtype, forbidden):
    lowest = {"min": torch.finfo(dtype).min, "inf": -torch.inf, "half": torch.finfo(dtype).min * 0.75}[
        forbidden
    ]
    additive = torch.tensor([[[[0.0, lowest, -30.0]]]], dtype=dtype)
    assert valid_pairs(nn.Linear(1, 1), additive).tolist() == [[[[True, False, True]]]]


def test_bool_masks_are_taken_as_they_are():
    valid = torch.tensor([[[[True, False]]]])
    assert valid_pairs(nn.Linear(1, 1), valid) is valid


def test_biases_are_no_masks():
    additive = torch.tensor([[[[0.7, -100.7, -9.0]]]])
    assert carries_bias(Shifted()) and not carries_bias(nn.Linear(1, 1))
    assert valid_pairs(Shifted(), additive).tolist() == [[[[True, False, True]]]]


def test_a_query_is_real_where_it_sees_itself():
    padding = torch.tensor([[False, True, True], [True, True, False]])
    both = padding[:, None, None, :].expand(-1, 1, 3, -1)
    causal = both & torch.ones(3, 3, dtype=torch.bool).tril()
    for valid in (both, causal):
        assert torch.equal(own_keys(valid, 3), padding)
    assert torch.equal(own_keys(padding[:, None, None, :], 3), padding)  # one row for all queries
    cached = causal[:, :, 1:]  # the last two queries, their earlier keys in a cache
    assert torch.equal(own_keys(cached, 2), padding[:, 1:])


def test_windows_stand_beside_the_heads():
    tensor = torch.arange(6 * 2 * 5).view(6, 2, 5)  # two data of three windows, two heads
    folded = windows_to_heads(tensor, 3)
    assert folded.shape == (2, 6, 5)
    for datum, window, head in [(0, 0, 1), (0, 2, 0), (1, 1, 1)]:
        assert torch.equal(folded[datum, window * 2 + head], tensor[datum * 3 + window, head])
    assert windows_to_heads(tensor, 1) is tensor
    assert windows_to_heads(tensor[:1], 3).shape == (1, 6, 5)
    assert torch.equal(in_batch(folded, 3), tensor)
    assert count_windows(6, 2, "site") == 3
    for data in (None, 0, 4):
        with pytest.raises(RuntimeError, match=r"site 'name'.*call the whole network"):
            count_windows(6, data, "name")


def test_masks_are_read_as_validity_and_bias():
    lowest = torch.finfo(torch.float32).min
    plain = read_mask(nn.Linear(1, 1), torch.tensor([[[[0.0, lowest]]]]))
    assert plain.valid.tolist() == [[[[True, False]]]] and plain.bias is None
    biased = read_mask(nn.Linear(1, 1), torch.tensor([[[[0.5, lowest]]]]))
    assert biased.valid.tolist() == [[[[True, False]]]] and biased.bias.tolist() == [[[[0.5, 0.0]]]]
    shared = read_mask(Shifted(), torch.tensor([[[[0.7, -3.0]]]]))
    assert shared.valid is None and torch.equal(shared.bias, torch.tensor([[[[0.7, -3.0]]]]))
    windows = read_mask(Shifted(), torch.tensor([[[[0.7, -100.7]]], [[[0.7, 0.3]]]]))
    assert windows.valid.tolist() == [[[[True, False]]], [[[True, True]]]]
    assert read_mask(nn.Linear(1, 1), None).valid is None
    with pytest.raises(TypeError, match=r"additive floating-point mask or a bool one, got torch\.int64"):
        read_mask(nn.Linear(1, 1), torch.ones(1, 1, 1, 2, dtype=torch.long))


def test_a_cache_of_fixed_length_has_empty_places_after_the_queries():
    written = torch.tensor([[False, True, True, True, False, False], [True, True, True, True, False, False]])
    prefill = written[:, None, None, :] & (torch.arange(6) <= torch.arange(4)[:, None])
    assert own_keys(prefill, 4).tolist() == [[False, True, True, True], [True] * 4]
    assert own_keys(written[:, None, None, :], 1).tolist() == [[True], [True]]
