"""Penalties on heads that are alike, against loops in numpy."""

import numpy as np
import pytest
import torch

from probattn.sites import cosine_agreement, frobenius_penalty, parameter_agreement, position_agreement

FUNCTIONS = (frobenius_penalty, position_agreement, cosine_agreement)


def heads(function, rows=3, count=4, queries=5, size=6, seed=0):
    """Weights whose rows sum to 1, or vectors, in float64; and which of the queries count."""
    drawn = torch.randn(rows, count, queries, size, generator=torch.Generator().manual_seed(seed)).double()
    mask = torch.ones(rows, queries, dtype=torch.bool)
    mask[0, 2:] = False
    mask[1, ::2] = False
    return (drawn if function is cosine_agreement else drawn.softmax(dim=-1)), mask


def by_loops(function, tensor, mask):
    x = tensor.detach().numpy()
    result = []
    for b in range(x.shape[0]):
        values = []
        for t in np.flatnonzero(mask[b].numpy()):
            rows, count = x[b, :, t], x.shape[1]
            if function is frobenius_penalty:
                values.append(np.linalg.norm(rows @ rows.T - np.eye(count), "fro") ** 2)
                continue
            total = 0.0
            for i in range(count):
                for j in range(count):
                    product = sum(a * c for a, c in zip(rows[i], rows[j], strict=True))
                    if function is cosine_agreement:
                        product /= np.linalg.norm(rows[i]) * np.linalg.norm(rows[j])
                    total += product
            values.append(total / count**2)
        result.append(np.mean(values))
    return torch.tensor(np.array(result))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_against_loops(function):
    tensor, mask = heads(function)
    torch.testing.assert_close(function(tensor, mask), by_loops(function, tensor, mask), rtol=1e-12, atol=0)
    everything = torch.ones_like(mask)
    torch.testing.assert_close(function(tensor), by_loops(function, tensor, everything), rtol=1e-12, atol=0)


def test_parameters_against_loops():
    particles = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).double()
    x = particles.numpy()
    total = 0.0
    for i in range(5):
        for j in range(5):
            total += float(x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j]))
    assert parameter_agreement(particles).item() == pytest.approx(total / 10, rel=1e-12)


def test_the_parameters_gradient_is_the_one_of_the_paper():
    """Section C.6: minus the mean over j of the gradient in theta_i of the cosine, taken one at a time."""
    particles = torch.randn(4, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    free = particles.clone().requires_grad_()
    parameter_agreement(free).backward()
    for i in range(4):
        own = particles[i].clone().requires_grad_()
        cosines = [
            torch.nn.functional.cosine_similarity(own, particles[j], dim=0) for j in range(4) if j != i
        ]
        (expected,) = torch.autograd.grad(torch.stack(cosines).sum() / 4, own)
        torch.testing.assert_close(free.grad[i], expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_by_finite_differences(function):
    tensor, mask = heads(function, rows=2, count=3, queries=3, size=4)
    free = tensor.clone().requires_grad_()
    function(free, mask[:2]).sum().backward()
    assert free.grad[~mask[:2][:, None, :, None].expand_as(tensor)].eq(0).all()
    step, checked = 1e-6, 0
    for place in [(1, 0, 1, 2), (0, 2, 0, 0), (1, 2, 1, 3)]:
        up, down = tensor.clone(), tensor.clone()
        up[place] += step
        down[place] -= step
        slope = (function(up, mask[:2]) - function(down, mask[:2])).sum() / (2 * step)
        if abs(slope) > 1e-4:
            assert torch.sign(slope) == torch.sign(free.grad[place])
            checked += 1
        assert free.grad[place].item() == pytest.approx(slope.item(), rel=1e-5, abs=1e-8)
    assert checked


@pytest.mark.parametrize("function", FUNCTIONS)
def test_descending_draws_heads_apart(function):
    tensor, mask = heads(function)
    logits = tensor.log() if function is not cosine_agreement else tensor
    logits = (0.1 * logits).requires_grad_()

    def value(x):
        return function(x if function is cosine_agreement else x.softmax(dim=-1), mask).sum()

    before = value(logits)
    (slope,) = torch.autograd.grad(before, logits)
    assert value(logits - 0.1 * slope) < before


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_order_of_heads_and_what_stands_at_padding_do_not_matter(function):
    tensor, mask = heads(function)
    expected = function(tensor, mask)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(function(tensor[:, order], mask), expected)
    beside = tensor.clone()
    beside.transpose(1, 2)[~mask] = 7.0
    assert torch.equal(function(beside, mask), expected)
    longer = torch.cat([tensor, tensor[:, :, :2]], dim=2)
    torch.testing.assert_close(function(longer, torch.cat([mask, mask[:, :2] & False], dim=1)), expected)


def test_the_ends_of_each_scale():
    apart = torch.eye(4)[None, :, None, :]
    alike = torch.full((1, 4, 1, 4), 0.25)
    one = torch.eye(4)[None, :1, None].expand(1, 4, 1, 4)
    assert frobenius_penalty(apart).item() == 0
    assert frobenius_penalty(one).item() == pytest.approx(4 * 3)
    assert position_agreement(apart).item() == position_agreement(alike).item() == pytest.approx(0.25)
    assert position_agreement(one).item() == pytest.approx(1)
    assert cosine_agreement(apart).item() == pytest.approx(0.25)
    assert cosine_agreement(5 * one).item() == cosine_agreement(alike).item() == pytest.approx(1)
    assert parameter_agreement(torch.ones(4, 3)).item() == pytest.approx(2)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_query_no_length_low_precision(function):
    nothing = torch.zeros(2, 3, 4, 5, requires_grad=True)
    found = function(nothing, torch.zeros(2, 4, dtype=torch.bool))
    assert found.eq(0).all()
    found.sum().backward()
    assert nothing.grad.isfinite().all()
    value = function(nothing)
    value.sum().backward()
    assert value.isfinite().all() and nothing.grad.isfinite().all()
    assert function(nothing[:, :, :0]).eq(0).all() and function(nothing.bfloat16()).dtype == torch.float32
    tensor, mask = heads(function)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = function(tensor.float(), mask)
    torch.testing.assert_close(found.double(), function(tensor, mask), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_does_not_fit_is_refused(function):
    tensor, mask = heads(function)
    name = function.__name__
    message = rf"^{name}: expected a tensor \[B, H, T, \.\.\.\] of four dimensions, got"
    with pytest.raises(ValueError, match=message):
        function(tensor[0])
    with pytest.raises(TypeError, match=rf"^{name}: expected floating-point numbers, got torch.int64"):
        function(tensor.long())
    words = rf"^{name}: expected a bool mask \(True = counts\), got torch.float32"
    with pytest.raises(TypeError, match=words):
        function(tensor, mask.float())
    with pytest.raises(ValueError, match=rf"^{name}: expected a mask \[3, 5\], got \[3, 4\]"):
        function(tensor, mask[:, :4])


def test_particles_are_two_dimensional():
    with pytest.raises(ValueError, match=r"^parameter_agreement: expected particles \[H, N\], got \[2\]"):
        parameter_agreement(torch.ones(2))
    with pytest.raises(TypeError, match="floating-point"):
        parameter_agreement(torch.ones(2, 2, dtype=torch.int64))
