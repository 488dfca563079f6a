"""The maximum mean discrepancy: scikit-learn's kernel, closed forms, and what measuring needs."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import rbf_kernel

from probattn.divergences import mean_difference, median_bandwidth, mmd


def seeded(number):
    return torch.Generator().manual_seed(number)


def sets(queries=5, keys=7, dtype=torch.float64):
    query = torch.randn(3, 2, queries, 4, generator=seeded(0)).to(dtype)
    return query, torch.randn(3, 2, keys, 4, generator=seeded(1)).to(dtype) + 0.4


@pytest.mark.parametrize("unbiased", [False, True])
def test_it_is_the_definition(unbiased):
    query, key = sets()
    masks = torch.rand(3, 5, generator=seeded(2)) < 0.8, torch.rand(3, 7, generator=seeded(3)) < 0.8
    found = mmd(query, key, bandwidth=1.7, unbiased=unbiased, query_mask=masks[0], key_mask=masks[1])
    for sample, head in np.ndindex(3, 2):
        x, y = query[sample, head][masks[0][sample]], key[sample, head][masks[1][sample]]
        gamma = 1 / (2 * 1.7**2)
        kernels = [rbf_kernel(first, second, gamma=gamma) for first, second in ((x, x), (y, y), (x, y))]
        if unbiased:
            within = [(k.sum() - np.trace(k)) / (len(k) * (len(k) - 1)) for k in kernels[:2]]
        else:
            within = [k.mean() for k in kernels[:2]]
        assert abs(found[sample, head].item() - (sum(within) - 2 * kernels[2].mean())) < 1e-12


def between_gaussians(shift, spread, bandwidth, size):
    """MMD^2 of N(0, I) and N(shift, spread^2 I): every term is a Gaussian integral."""

    def term(variance, distance):
        total = bandwidth**2 + variance
        return (bandwidth**2 / total) ** (size / 2) * math.exp(-(distance**2) / (2 * total))

    return term(2.0, 0.0) + term(2 * spread**2, 0.0) - 2 * term(1 + spread**2, shift * math.sqrt(size))


def test_two_gaussians_have_the_value_of_the_closed_form():
    """Unbiased: the mean over 400 pairs of sets lies within three standard errors."""
    query = torch.randn(400, 1, 40, 3, generator=seeded(4))
    key = torch.randn(400, 1, 40, 3, generator=seeded(5)) * 1.5 + 0.5
    found = mmd(query, key, bandwidth=1.2, unbiased=True).squeeze(1)
    expected = between_gaussians(0.5, 1.5, 1.2, 3)
    error = found.std() / math.sqrt(400)
    assert error < 0.05 * expected
    assert abs(found.mean() - expected) < 3 * error
    assert mmd(query, key, bandwidth=1.2).mean() > expected + 10 * error  # the floor of the biased estimate


def test_the_unbiased_estimate_is_0_on_average_between_equal_distributions():
    query, key = torch.randn(2, 400, 1, 20, 3, generator=seeded(6))
    found = mmd(query, key, unbiased=True).squeeze(1)
    assert abs(found.mean()) < 3 * found.std() / math.sqrt(400)
    assert bool((found < 0).any())


def test_it_is_symmetric_and_0_for_equal_sets():
    query, key = sets()
    torch.testing.assert_close(mmd(query, key), mmd(key, query))
    assert mmd(query, query).abs().max() < 1e-12
    assert bool((mmd(query, key) > 0).all())


def test_its_gradient_is_its_derivative():
    query, key = (tensor[:1].requires_grad_() for tensor in sets(3, 4))
    mask = torch.tensor([[True, False, True, True]])
    assert torch.autograd.gradcheck(lambda q, k: mmd(q, k, bandwidth=1.3, key_mask=mask), (query, key))
    assert torch.autograd.gradcheck(lambda q, k: mmd(q, k, unbiased=True), (query, key))


def test_a_bandwidth_per_head():
    query, key = sets()
    widths = torch.tensor([0.7, 2.0])
    both = mmd(query, key, bandwidth=widths)
    for head, width in enumerate(widths):
        torch.testing.assert_close(both[:, head], mmd(query, key, bandwidth=width.item())[:, head])


@pytest.mark.parametrize(
    ("bandwidth", "message"),
    [
        (0.0, "expected a number > 0, got 0.0"),
        (-1.0, "expected a number > 0, got -1.0"),
        (float("nan"), "expected a finite number > 0, got nan"),
        (float("inf"), "expected a finite number > 0, got inf"),
        (torch.tensor([1.0, 0.0]), "expected finite numbers > 0"),
        (torch.tensor([1.0, float("inf")]), "expected finite numbers > 0"),
        (torch.ones(3), r"broadcasts to \[B, H\] = \[3, 2\], got \[3\]"),
        (torch.ones(1, 3, 2), r"broadcasts to \[B, H\] = \[3, 2\], got \[1, 3, 2\]"),
    ],
)
def test_a_bandwidth_that_is_none_is_refused(bandwidth, message):
    with pytest.raises(ValueError, match=rf"mmd\.bandwidth: .*{message}"):
        mmd(*sets(), bandwidth=bandwidth)


def test_the_mean_difference_is_over_all_tokens_that_count():
    query, key = sets()
    masks = torch.rand(3, 5, generator=seeded(2)) < 0.8, torch.rand(3, 7, generator=seeded(3)) < 0.8
    found = mean_difference(query, key, query_mask=masks[0], key_mask=masks[1])
    expected = key.transpose(1, 2)[masks[1]].mean(0) - query.transpose(1, 2)[masks[0]].mean(0)  # [H, D]
    torch.testing.assert_close(found, expected)


def test_the_mean_difference_takes_a_mask_for_each_head():
    query, key = sets()
    mask = torch.rand(3, 2, 5, generator=seeded(2)) < 0.6
    means = [query[:, head][mask[:, head]].mean(0) for head in range(2)]
    expected = key.mean(dim=(0, 2)) - torch.stack(means)
    torch.testing.assert_close(mean_difference(query, key, query_mask=mask), expected)
    mask[:, 1] = False  # a head of which no query counts
    found = mean_difference(query, key, query_mask=mask)
    torch.testing.assert_close(found[1], key[:, 1].mean(dim=(0, 1)))


def test_centred_values_do_not_see_a_shift_of_a_head():
    query, key = sets()
    shift = torch.randn(2, 1, 4, generator=seeded(7)).double()
    assert not torch.allclose(mmd(query, key + shift), mmd(query, key))
    torch.testing.assert_close(mmd(query, key + shift, centred=True), mmd(query, key, centred=True))
    removed = key - mean_difference(query, key).unsqueeze(1)
    torch.testing.assert_close(mmd(query, key, centred=True), mmd(query, removed))


def test_the_median_bandwidth_is_the_median_within_samples():
    query, key = sets()
    masks = torch.rand(3, 5, generator=seeded(2)) < 0.8, torch.rand(3, 7, generator=seeded(3)) < 0.8
    found = median_bandwidth(query, key, query_mask=masks[0], key_mask=masks[1])
    for head in range(2):
        distances = []
        for sample in range(3):
            pooled = torch.cat([query[sample, head][masks[0][sample]], key[sample, head][masks[1][sample]]])
            distances.append(torch.nn.functional.pdist(pooled))
        torch.testing.assert_close(found[head], torch.cat(distances).median())


def test_a_head_without_two_tokens_at_a_distance_has_no_median():
    query, key = sets()
    query[:, 1], key[:, 1] = 0.0, 0.0
    with pytest.raises(ValueError, match="head 1 has no two tokens at a distance; give a bandwidth"):
        median_bandwidth(query, key)


def test_without_two_tokens_that_count_there_is_no_unbiased_estimate():
    query, key = sets()
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, 1:] = False
    found = mmd(query, key, bandwidth=1.0, unbiased=True, query_mask=mask)
    assert bool((found[1] == 0).all()) and not bool((found[[0, 2]] == 0).any())


def test_a_set_far_from_the_other_keeps_its_precision():
    query, key = sets()
    for unbiased in (False, True):
        wide, narrow = (
            mmd(query.to(dtype), (key + 1000).to(dtype), bandwidth=1.0, unbiased=unbiased)
            for dtype in (torch.float64, torch.float32)
        )
        # Keys themselves are rounded at 1000 to 6e-5.
        torch.testing.assert_close(narrow.double(), wide, rtol=1e-3, atol=1e-6)
    small = mmd(*(side.float() for side in sets()), bandwidth=1e-23)
    torch.testing.assert_close(small.double(), mmd(*sets(), bandwidth=1e-23))
