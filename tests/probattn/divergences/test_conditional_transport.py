"""Conditional transport against a dense computation of its own, and who ascends what."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from probattn.divergences import Critic, Navigator, conditional_transport


def seeded(number):
    return torch.Generator().manual_seed(number)


def by_pairs(query, key, query_mask, key_mask, forward_weight, navigate=lambda x: x, judge=lambda x: x):
    """The definition, one sample and head after the other, over the tokens that count."""
    result = np.zeros(query.shape[:2])
    for sample, head in np.ndindex(*result.shape):
        q, k = query[sample, head][query_mask[sample]], key[sample, head][key_mask[sample]]
        if not len(q) or not len(k):
            continue
        logits = np.array([[navigate(b) @ navigate(a) for b in k] for a in q])
        cosine = np.array(
            [
                [judge(b) @ judge(a) / np.linalg.norm(judge(a)) / np.linalg.norm(judge(b)) for b in k]
                for a in q
            ]
        )
        weights = np.exp(logits - logits.max())
        to_keys = weights / weights.sum(1, keepdims=True)
        to_queries = weights / weights.sum(0, keepdims=True)
        forward = ((1 - cosine) * to_keys).sum(1).mean()
        backward = ((1 - cosine) * to_queries).sum(0).mean()
        result[sample, head] = forward_weight * forward + (1 - forward_weight) * backward
    return result


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.integers(0, 99),
)
def test_it_is_the_definition_with_identity_networks_and_random_masks(queries, keys, size, weight, seed):
    rng = np.random.default_rng(seed)
    query, key = rng.normal(size=(3, 2, queries, size)), rng.normal(size=(3, 2, keys, size)) + 0.3
    masks = rng.random((3, queries)) < 0.7, rng.random((3, keys)) < 0.7
    found = conditional_transport(
        torch.tensor(query),
        torch.tensor(key),
        navigator=nn.Identity(),
        critic=nn.Identity(),
        forward_weight=weight,
        query_mask=torch.tensor(masks[0]),
        key_mask=torch.tensor(masks[1]),
    )
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), by_pairs(query, key, *masks, weight), rtol=0, atol=1e-10)


def test_it_is_the_definition_with_networks():
    query, key = torch.randn(2, 2, 3, 5, 4, generator=seeded(0)).double()
    navigator, critic = Navigator(4, generator=seeded(1)).double(), Critic(4, generator=seeded(2)).double()

    def apply(network):
        return lambda token: network(torch.tensor(token)).detach().numpy()

    found = conditional_transport(query, key, navigator=navigator, critic=critic)
    everything = np.ones((2, 5), dtype=bool)
    expected = by_pairs(
        query.numpy(), key.numpy(), everything, everything, 0.5, apply(navigator), apply(critic)
    )
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-10)


def test_swapping_queries_and_keys_swaps_the_directions():
    query, key = torch.randn(2, 3, 2, 6, 4, generator=seeded(3)).double()
    networks = {"navigator": Navigator(4, generator=seeded(1)).double(), "critic": Critic(4).double()}
    torch.testing.assert_close(
        conditional_transport(query, key, **networks), conditional_transport(key, query, **networks)
    )
    torch.testing.assert_close(
        conditional_transport(query, key, forward_weight=0.2, **networks),
        conditional_transport(key, query, forward_weight=0.8, **networks),
    )


def test_a_small_step_lowers_it_for_all_but_the_critic(slopes):
    """Gradient descent on the returned value, one party at a time; the change is of first order in the step."""
    parties = {
        "query": torch.randn(2, 2, 5, 4, generator=seeded(4)).double().requires_grad_(),
        "key": torch.randn(2, 2, 7, 4, generator=seeded(5)).double().requires_grad_(),
        "navigator": Navigator(4, generator=seeded(1)).double(),
        "critic": Critic(4, generator=seeded(2)).double(),
    }

    for name, slope in slopes(lambda: conditional_transport(**parties).sum(), parties):
        assert abs(slope - (1 if name == "critic" else -1)) < 1e-2, name


def test_its_gradient_is_its_derivative_but_for_the_critic():
    query = torch.randn(1, 2, 3, 2, generator=seeded(6)).double().requires_grad_()
    key = torch.randn(1, 2, 4, 2, generator=seeded(7)).double().requires_grad_()
    mask = torch.tensor([[True, True, False, True]])
    networks = {"navigator": nn.Linear(2, 2).double(), "critic": nn.Linear(2, 3).double()}
    assert torch.autograd.gradcheck(
        lambda q, k: conditional_transport(q, k, key_mask=mask, **networks), (query, key)
    )


def test_a_vector_of_length_0_costs_1_and_has_no_gradient():
    query, key = torch.zeros(1, 1, 1, 2, requires_grad=True), torch.ones(1, 1, 1, 2)
    cost = conditional_transport(query, key, navigator=nn.Identity(), critic=nn.Identity())
    cost.sum().backward()
    assert cost.item() == 1 and bool((query.grad == 0).all())


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan")])
def test_a_weight_outside_its_range_is_refused(weight):
    tokens = torch.ones(1, 1, 1, 2)
    with pytest.raises(ValueError, match=r"forward_weight: expected a number in \[0, 1\], got"):
        conditional_transport(
            tokens, tokens, navigator=nn.Identity(), critic=nn.Identity(), forward_weight=weight
        )


def test_a_navigator_is_described_by_its_two_layers_alone() -> None:
    """A training that is resumed compares descriptions of its networks."""
    assert [name for name, _ in Navigator(4).named_children()] == ["hidden", "output"]
