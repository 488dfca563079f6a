"""The small networks and the layers that change gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from probattn import divergences
from probattn.divergences.adversarial import reversed_twice, scale_gradient


def seeded(number):
    return torch.Generator().manual_seed(number)


def weights(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


@pytest.mark.parametrize(
    "network", [divergences.Highway, divergences.Discriminator, divergences.Critic, divergences.Navigator]
)
def test_weights_come_from_the_generator_alone(network):
    state = torch.get_rng_state()
    first, again, other = (weights(network(8, generator=seeded(seed))) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert bool(first.isfinite().all()) and 0.1 < first.abs().max() <= 8**-0.5
    torch.manual_seed(0)
    torch.testing.assert_close(
        first.std(), weights(nn.Linear(8, 64)).std(), rtol=0.25, atol=0
    )  # torch's own distribution


def test_the_highway_is_that_of_the_paper():
    highway, x = divergences.Highway(4, generator=seeded(0)), torch.randn(3, 4, generator=seeded(1))
    gate_map, value_map = highway.maps.weight.chunk(2)
    gate_bias, value_bias = highway.maps.bias.chunk(2)
    gate = torch.sigmoid(F.linear(x, gate_map, gate_bias))
    expected = gate * torch.relu(F.linear(x, value_map, value_bias)) + (1 - gate) * x
    torch.testing.assert_close(highway(x), expected)


def test_the_networks_are_those_of_the_paper():
    x = torch.randn(5, 4, generator=seeded(1))
    discriminator = divergences.Discriminator(4, 6, generator=seeded(0))
    hidden = F.leaky_relu(discriminator.hidden(discriminator.highway(x)), 0.01)
    torch.testing.assert_close(discriminator(x), discriminator.output(hidden).squeeze(-1))
    assert hidden.shape == (5, 6)
    single = divergences.Discriminator(4, kind="mlp", generator=seeded(0))
    torch.testing.assert_close(single(x), single.output(torch.relu(single.hidden(x))).squeeze(-1))
    assert sum(p.numel() for p in single.parameters()) == 4 * 4 + 4 + 4 + 1
    critic, navigator = divergences.Critic(4, 6, 3), divergences.Navigator(4, 6, 3)
    torch.testing.assert_close(critic(x), critic.output(F.leaky_relu(critic.hidden(critic.highway(x)), 0.01)))
    torch.testing.assert_close(navigator(x), navigator.output(torch.relu(navigator.hidden(x))))
    assert critic(x).shape == navigator(x).shape == (5, 3)


def test_an_unknown_discriminator_is_refused():
    with pytest.raises(ValueError, match="expected one of 'highway', 'mlp', 'release', got 'conv'"):
        divergences.Discriminator(4, kind="conv")


@pytest.mark.parametrize("kind", [divergences.Critic, divergences.Navigator, divergences.Discriminator])
def test_sizes_below_1_are_refused(kind):
    with pytest.raises(ValueError, match=rf"{kind.__name__}\.head_dim: expected an integer >= 1, got 0"):
        kind(0)
    with pytest.raises(ValueError, match=rf"{kind.__name__}\.hidden: expected an integer >= 1, got 0"):
        kind(4, 0)
    with pytest.raises(ValueError, match=r"Highway\.size: expected an integer >= 1, got -1"):
        divergences.Highway(-1)


@pytest.mark.parametrize(
    "network", [divergences.Highway, divergences.Critic, divergences.Navigator, divergences.Discriminator]
)
def test_vectors_of_another_size_are_refused(network):
    with pytest.raises(ValueError, match=rf"^{network.__name__}: expected vectors of size 4, got 5"):
        network(4)(torch.zeros(2, 5))


def test_gradients_are_scaled_and_reversed():
    for layer, factor in (
        (lambda x: scale_gradient(x, 0.3), 0.3),
        (divergences.gradient_reversal, -1.0),
        (lambda x: divergences.gradient_reversal(x, 0.5), -0.5),
    ):
        x = torch.randn(3, generator=seeded(0), requires_grad=True)
        output = layer(x)
        assert torch.equal(output, x)
        output.backward(torch.tensor([1.0, 2.0, 3.0]))
        torch.testing.assert_close(x.grad, factor * torch.tensor([1.0, 2.0, 3.0]))


def test_a_single_reversal_at_the_input_would_flip_the_wrong_party():
    """What two reversals are for: the network's own gradient flips, that of its input does not."""
    x = torch.randn(4, 3, generator=seeded(0), requires_grad=True)
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def gradients(output):
        return torch.autograd.grad(output.sum(), [x, *network.parameters()])

    plain, twice, once = (
        gradients(output)
        for output in (network(x), reversed_twice(network, x), network(divergences.gradient_reversal(x)))
    )
    torch.testing.assert_close(twice[0], plain[0])
    torch.testing.assert_close(once[0], -plain[0])
    for own, reversed_own, other in zip(plain[1:], twice[1:], once[1:], strict=True):
        torch.testing.assert_close(reversed_own, -own)
        torch.testing.assert_close(other, own)


@pytest.mark.parametrize(
    "network", [divergences.Highway, divergences.Discriminator, divergences.Critic, divergences.Navigator]
)
def test_another_precision_than_the_vectors_is_refused(network):
    vectors = torch.ones(2, 3, 4, 8)
    with pytest.raises(
        TypeError, match=r"expected a network in torch.float32, .* got torch.bfloat16; call its m"
    ):
        network(8).bfloat16()(vectors)


def test_heads_are_compared_under_one_mask():
    query, key = torch.randn(2, 1, 3, 4, 8, generator=seeded(0))
    networks = {"navigator": divergences.Navigator(8), "critic": divergences.ReleaseCritic(8)}
    mask = torch.tensor([[True, True, False, False]])
    alike = mask.unsqueeze(1).expand(1, 3, 4)
    expected = divergences.head_transport(query, key, mask, **networks)
    assert torch.equal(
        divergences.head_transport(query, key, query_mask=alike, key_mask=alike, **networks), expected
    )
    different = torch.ones(1, 3, 4, dtype=torch.bool)
    different[:, 1, 2:] = False
    with pytest.raises(
        ValueError, match="one mask for all heads, which it compares, got masks that differ by head"
    ):
        divergences.head_transport(query, key, query_mask=different, key_mask=different, **networks)
