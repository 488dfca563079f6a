"""Head measures against SciPy and NumPy, pair by pair."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, jensenshannon, pdist

from probattn.metrics.functional import attention_overlap, head_distance, head_similarity

MEASURES = [head_distance, attention_overlap, head_similarity]


def outputs(seed=0, shape=(3, 4, 5, 6)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def some():
    return torch.arange(5) < torch.tensor([[5], [2], [0]])


@pytest.mark.parametrize(("mask", "queries"), [(None, 5), (some(), 5), (None, 2)])
def test_distance_is_that_of_scipy(mask, queries):
    output = outputs(shape=(3, 4, queries, 6))
    chosen = [(b, t) for b in range(3) for t in range(queries) if mask is None or mask[b, t]]
    pairs = [pdist(output[b, :, t].numpy()).mean() for b, t in chosen]
    norms = [np.linalg.norm(output[b, :, t].numpy(), axis=-1).mean() for b, t in chosen]
    found = head_distance(output, mask)
    assert found.distance.item() == pytest.approx(np.mean(pairs), rel=1e-5)
    assert found.relative.item() == pytest.approx(np.mean(pairs) / np.mean(norms), rel=1e-5)


@pytest.mark.parametrize("mask", [None, some()])
def test_overlap_is_one_minus_total_variation(mask):
    weights = torch.softmax(3 * outputs(1), dim=-1)
    chosen = [(b, t) for b in range(3) for t in range(5) if mask is None or mask[b, t]]
    pairs = [1 - pdist(weights[b, :, t].numpy(), "cityblock").mean() / 2 for b, t in chosen]
    assert attention_overlap(weights, mask).item() == pytest.approx(np.mean(pairs), rel=1e-5)
    assert jensenshannon(weights[0, 0, 0], weights[0, 1, 0]) > 0  # the heads differ


@pytest.mark.parametrize("mask", [None, some()])
def test_similarity_is_that_of_scipy(mask):
    output = outputs(2)
    chosen = [(b, t) for b in range(3) for t in range(5) if mask is None or mask[b, t]]
    pairs = [1 - cdist(output[b, :, t], output[b, :, t], "cosine") for b, t in chosen]
    np.testing.assert_allclose(head_similarity(output, mask).numpy(), np.mean(pairs, axis=0), atol=1e-5)


def test_limits():
    output = outputs()
    same = output[:, :1].expand(-1, 3, -1, -1)
    assert head_distance(same).distance == head_distance(same).relative == 0
    torch.testing.assert_close(head_similarity(same), torch.ones(3, 3))
    weights = torch.eye(3).view(1, 3, 1, 3)
    assert attention_overlap(weights) == 0
    torch.testing.assert_close(attention_overlap(weights[:, :1].expand(-1, 4, -1, -1)), torch.tensor(1.0))
    torch.testing.assert_close(head_distance(5 * output).relative, head_distance(output).relative)
    silent = torch.zeros(1, 2, 1, 3)
    assert head_distance(silent).relative == 0 and head_similarity(silent).eq(0).all()


def test_half_precision_is_computed_in_float32():
    output = outputs().to(torch.bfloat16)
    assert head_distance(output).distance.dtype == torch.float32
    torch.testing.assert_close(head_similarity(output), head_similarity(output.float()))


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("tensor", "mask", "error", "message"),
    [
        (torch.rand(2, 3, 4), None, ValueError, r"four dimensions, got \[2, 3, 4\]"),
        (torch.rand(2, 1, 3, 4), None, ValueError, "at least 2 heads to compare, got 1"),
        (torch.ones(2, 2, 3, 4).int(), None, TypeError, "floating-point numbers, got torch.int32"),
        (torch.rand(2, 2, 3, 4), torch.ones(2, 3), TypeError, "bool mask"),
        (torch.rand(2, 2, 3, 4), torch.ones(2, 4).bool(), ValueError, r"a mask \[2, 3\], got \[2, 4\]"),
        (torch.rand(2, 2, 3, 4), torch.zeros(2, 3).bool(), ValueError, "one query that counts, got none"),
    ],
)
def test_bad_input(measure, tensor, mask, error, message):
    with pytest.raises(error, match=f"^{measure.__name__}: expected .*{message}"):
        measure(tensor, mask)
