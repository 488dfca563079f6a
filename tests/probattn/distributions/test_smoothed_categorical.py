"""The smoothed likelihood against torch's cross-entropy, a sum by hand and the categorical distribution."""

import pytest
import torch
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy

from probattn.distributions import SmoothedCategorical


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7])
def test_it_is_the_mean_of_log_p_over_what_a_class_may_be(epsilon: float) -> None:
    logits = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    value = torch.randint(0, 6, (3, 4))
    found = SmoothedCategorical(logits, epsilon).log_prob(value)
    p = logits.softmax(-1)
    expected = (1 - epsilon) * p.gather(-1, value[..., None]).squeeze(-1).log() + epsilon * p.log().mean(-1)
    torch.testing.assert_close(found, expected)
    theirs = -cross_entropy(logits.flatten(0, 1), value.flatten(), label_smoothing=epsilon)
    torch.testing.assert_close(found.mean(), theirs)
    ours, own = (torch.autograd.grad(each.sum(), logits, retain_graph=True)[0] for each in (found, expected))
    torch.testing.assert_close(ours, own)


def test_without_smoothing_it_is_the_categorical_distribution() -> None:
    logits = torch.randn(5, 3)
    plain, ours = Categorical(logits=logits), SmoothedCategorical(logits)
    value = torch.tensor([0, 1, 2, 1, 0])
    torch.testing.assert_close(ours.log_prob(value), plain.log_prob(value))
    torch.testing.assert_close(ours.log_prob(torch.tensor(1)), plain.log_prob(torch.tensor(1)))
    assert ours.log_prob(torch.randint(0, 3, (7, 5))).shape == (7, 5)
    single = SmoothedCategorical(logits[0]).log_prob(value[:3])
    torch.testing.assert_close(single, Categorical(logits=logits[0]).log_prob(value[:3]))


def test_draws_follow_the_softmax_whatever_the_smoothing() -> None:
    torch.manual_seed(0)
    p = torch.tensor([0.7, 0.2, 0.1])
    drawn = SmoothedCategorical(p.log().expand(2, 3), 0.5).sample((20_000,))
    assert drawn.shape == (20_000, 2)
    counts = torch.nn.functional.one_hot(drawn, 3).float().mean((0, 1))
    assert (counts - p).abs().max() < 0.01


def test_it_expands_and_reinterprets_as_pyro_asks() -> None:
    logits = torch.randn(2, 3, 4)
    wide = SmoothedCategorical(logits, 0.2).expand((5, 2, 3))
    assert wide.batch_shape == (5, 2, 3) and wide.smoothing == 0.2
    value = torch.randint(0, 4, (2, 3))
    expected = SmoothedCategorical(logits, 0.2).log_prob(value)
    torch.testing.assert_close(wide.log_prob(value), expected.expand(5, 2, 3))
    valid = torch.tensor([[True, False, True], [False, False, False]])
    event = SmoothedCategorical(logits, 0.2).mask(valid).to_event(1)
    torch.testing.assert_close(event.log_prob(value), (expected * valid).sum(-1))


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_a_smoothing_that_is_no_share_is_refused(smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"smoothing: expected a number in \[0, 1\)"):
        SmoothedCategorical(torch.zeros(2), smoothing)


def test_bad_logits_and_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="a dimension of classes"):
        SmoothedCategorical(torch.tensor(0.0))
    with pytest.raises(ValueError, match="logits"):
        SmoothedCategorical(torch.tensor([0.0, torch.nan]), validate_args=True)
    with pytest.raises(ValueError, match="support"):
        SmoothedCategorical(torch.zeros(2), validate_args=True).log_prob(torch.tensor(2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_and_classes_of_other_types(dtype):
    logits, weights, value = (
        torch.randn(4, 3, dtype=dtype),
        torch.tensor([1.0, 2.0, 0.5]),
        torch.tensor([0, 1, 2, 1]),
    )
    expected = -cross_entropy(logits, value, weights.to(dtype), reduction="none")
    assert torch.equal(SmoothedCategorical(logits, 0.0, weights).log_prob(value.int()), expected)
