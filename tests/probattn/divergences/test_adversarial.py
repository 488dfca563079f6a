"""The adversarial divergence: its value, and who ascends it."""

import math

import numpy as np
import pytest
import torch
from scipy.special import expit
from torch import nn

from probattn.divergences import Discriminator, adversarial


def seeded(number):
    return torch.Generator().manual_seed(number)


class First(nn.Module):
    """The first feature as the logit."""

    def forward(self, x):
        return x[..., 0]


def test_it_is_the_definition():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(3, 2, 5, 4)), rng.normal(size=(3, 2, 7, 4))
    masks = rng.random((3, 5)) < 0.6, rng.random((3, 7)) < 0.6
    found = adversarial(
        torch.tensor(query),
        torch.tensor(key),
        discriminator=First(),
        query_mask=torch.tensor(masks[0]),
        key_mask=torch.tensor(masks[1]),
    )
    for sample in range(3):
        for head in range(2):
            q, k = query[sample, head][masks[0][sample]], key[sample, head][masks[1][sample]]
            expected = np.log(expit(q[:, 0])).mean() + np.log(1 - expit(k[:, 0])).mean()
            assert abs(found[sample, head].item() - expected) < 1e-12


def test_a_discriminator_that_cannot_tell_gives_minus_2_log_2():
    query, key = torch.randn(2, 3, 2, 4, 5, generator=seeded(0))
    found = adversarial(query, key, discriminator=lambda x: torch.zeros(x.shape[:-1]))
    torch.testing.assert_close(found, torch.full((3, 2), -2 * math.log(2)))


def test_the_discriminator_raises_it_and_both_queries_and_keys_lower_it(slopes):
    parties = {
        "query": torch.randn(2, 2, 5, 4, generator=seeded(1)).double().requires_grad_(),
        "key": torch.randn(2, 2, 7, 4, generator=seeded(2)).double().requires_grad_(),
        "discriminator": Discriminator(4, generator=seeded(3)).double(),
    }

    for name, slope in slopes(lambda: adversarial(**parties).sum(), parties):
        assert abs(slope - (1 if name == "discriminator" else -1)) < 1e-2, name


def test_the_game_brings_two_clouds_together():
    """Played to its end on a shift between equal sets, the shift goes."""
    cloud = torch.randn(1, 1, 64, 2, generator=seeded(4))
    shift = torch.tensor([2.0, -1.0], requires_grad=True)
    discriminator = nn.Sequential(nn.Linear(2, 1), nn.Flatten(-2))
    with torch.no_grad():
        discriminator[0].weight.zero_()
        discriminator[0].bias.zero_()
    optimizer = torch.optim.SGD(
        [{"params": discriminator.parameters(), "lr": 1.0}, {"params": [shift], "lr": 0.1}]
    )
    for _ in range(300):
        optimizer.zero_grad()
        adversarial(cloud, cloud + shift, discriminator=discriminator).sum().backward()
        optimizer.step()
    assert shift.norm() < 0.1


def test_a_discriminator_of_the_wrong_shape_is_refused():
    query, key = torch.randn(2, 2, 3, 4, 8)
    message = r"adversarial: expected the discriminator to give logits \[2, 3, 8\], got \[2, 3, 8, 1\]"
    with pytest.raises(ValueError, match=message):
        adversarial(query, key, discriminator=torch.nn.Linear(8, 1))


def test_empty_sets_have_a_gradient_of_0():
    query = torch.randn(2, 3, 0, 8, requires_grad=True)
    key = torch.randn(2, 3, 4, 8, requires_grad=True)
    found = adversarial(query, key, discriminator=Discriminator(8))
    assert found.shape == (2, 3) and found.eq(0).all()
    found.sum().backward()
    assert key.grad.eq(0).all()
