"""Posteriors that answer with what a call makes of a draw, and keep nothing of S that a gradient does not need."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import ClassVar

from pyro.distributions import Unit
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from probattn.distributions import Gamma, LogNormal
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.handlers import DeferredFactor, takes_answers
from probattn.sites.layout import Layout
from probattn.sites.noise import Noise
from probattn.sites.posterior import PosteriorInputs, SitePosterior, predicted_weights, site_uniform
from probattn.sites.upward import SharedUpward


class AnsweringPosterior(SitePosterior):
    """q(S) of a call whose draw leaves an answer and a KL; the site's value ``[B, 0]`` holds nothing.

    Attributes:
        answer: what the call makes of the draw; None before it.
        uses_up_noise: whether nothing needs a draw's noise when it is done.
    """

    answer: Tensor | None = None
    uses_up_noise: ClassVar[bool] = True

    def prior_event(self) -> TorchDistributionMixin:
        """The prior of a value that holds nothing."""
        # Zeros; to validate them would be to wait for a device.
        return Unit(self._nothing().sum(dim=1), validate_args=False)

    def event(self) -> TorchDistributionMixin:
        """q of a value that holds nothing: its log density, less that of the prior, is the KL."""
        return DeferredFactor(self.kl, self.batch_shape[:1])

    def _nothing(self) -> Tensor:
        """The value ``[B, 0]``, of the map's type and on its device."""
        return self._like.new_empty(len(self._like), 0)


class WeightsPosterior(AnsweringPosterior):
    """q(S) of a learned concentration, answering with the weights W.

    A draw keeps log E[S], the upward path's output and W for its gradient, and computes the rest again. ``prior`` makes
    the prior where a KL asks for it.
    """

    def __init__(
        self, inputs: PosteriorInputs, prior: Callable[[], Gamma | LogNormal], observations: int = 1
    ) -> None:
        like = inputs.raw.new_empty(()).expand(inputs.raw.shape)  # without the scores' memory
        self._describe(inputs.method, inputs.layout, like)
        self._inputs, self._make_prior, self.observations = inputs, prior, observations

    @cached_property
    def prior(self) -> Gamma | LogNormal:
        """The prior."""
        return self._make_prior()

    def draw(self, noise: Noise, *, with_kl: bool = True) -> Tensor:
        """Draws W ``[B, H, T, S]``, the answer; the value itself is ``[B, 0]``."""
        uniform = site_uniform(self.method, noise, self.inputs.raw)
        weights, _, log_mean = self._fused_draw(uniform, with_kl, normalise=True)
        assert log_mean is not None
        self.answer = self.layout.zero_empty(weights)
        self._inputs = self.inputs.detached(log_mean)
        return self._nothing()

    def predict(self, noise: Noise, shared: SharedUpward) -> Tensor:
        """Draws W ``[P * B, H, T, S]``, the answer, for a prediction; it keeps nothing of its noise."""
        inputs = self.inputs.for_draws(shared, noise.draws)
        drawn = predicted_weights(inputs, noise)
        if drawn is None:
            log_value = SitePosterior(inputs, self.prior).log_draw(noise, with_kl=False)
            self.answer = self.layout.weights(log_value)
        else:
            self.answer = drawn[1]
        return self._nothing()


def can_answer_with_weights(method: BayesianAttention, layout: Layout) -> bool:
    """True where W is drawn without S: a learned concentration, which is small where scores are normalised."""
    learned = method.posterior == "weibull" and method.concentration == "learned" and not method.learns_scale
    return learned and method.scores == "normalised" and layout.keys_last and takes_answers()
