"""Options of Bayesian attention: belief networks (BABN) and the Bayesian attention modules (BAM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from probattn.checks import check_choice, check_integer, check_number

if TYPE_CHECKING:
    from probattn.sites.site import AttentionSite

PosteriorFamily = Literal["weibull", "lognormal"]
UpwardAxis = Literal["heads", "positions"]
PriorKind = Literal["contextual", "constant"]
ScoreScale = Literal["normalised", "raw"]
NoiseKind = Literal["exact", "truncated"]
KLReduction = Literal["mean", "keys", "sum"]
OWNER = "BayesianAttention"


@dataclass(frozen=True)
class BayesianAttention:
    r"""Latent unnormalised attention weights S with a gamma prior and a Weibull posterior (Zhang et al. 2021).

    .. math::
        S &\sim \mathrm{Gamma}(\alpha, \beta), \qquad W = S / \textstyle\sum_{keys} S \\
        q(S) &= \mathrm{Weibull}(k, \lambda), \quad k = \rho\,\mathrm{softplus}(f_k(h)) + e^{\Phi} + \mathrm{floor} \\
        \lambda &= \sigma\,\mathrm{softplus}(f_\lambda(h)) + e^{\Phi} / \Gamma(1 + 1/k)

    with the attention scores :math:`\Phi` and the upward path h of section 3.2. The defaults are what a careful user
    wants; :meth:`paper` gives the text's own settings and :meth:`bam` the fixed-concentration baseline.

    Args:
        posterior: family of q(S): "weibull", or "lognormal" with :math:`\log S \sim N(\Phi - s^2/2, s)` (BAM).
        concentration: "learned" (BABN), or the constant k > 0 of BAM's Weibull. Unused by "lognormal".
        rho: weight of the upward path in k, >= 0. 0 leaves ``exp(scores) + floor``. 4, the upper end of the range that
            the paper finds alike (1 to 4), begins near k = 3, as wide as the attention dropout of 0.1 that latent
            weights take the place of; the paper uses 1.5.
        sigma: weight of the upward path in lambda, >= 0. 0 (default) keeps E[S] = exp(scores), so that a converted
            network predicts exactly as before until it is trained; the paper uses 1e-6.
        upward: axis that the linear maps of the upward path mix: "heads" (any length, causal-safe) or "positions"
            (along queries, up to ``max_positions``; only for networks without causal masks or cache).
        prior: "contextual" (:math:`\alpha` = softmax over keys of an MLP of the key) or "constant".
        prior_hidden: hidden width of the prior's MLP (20).
        prior_concentration: :math:`\alpha` of the constant prior, > 0.
        rate: :math:`\beta`, > 0.
        scores: "normalised" replaces the scores by their log-softmax, a shift per query that keeps exp() and the KL
            bounded; "raw" is the paper's form, finite only while exp(scores) is.
        noise: "exact" uniform noise, or "truncated" to (0.1, 0.9) as in the paper (not the Weibull of the KL).
        kl_reduction: how a site's KL enters the objective: "mean" over valid pairs, "keys" (sum over keys, mean over
            queries and heads) or "sum" (the exact ELBO). Reported KLs name it and are given in nats beside.
        floor: added to k so that it stays positive, >= 0. With 0, k = exp(scores) may be so small at unlikely pairs
            that E[S] or the KL exceed the floating-point range; k itself stays above 3e-10 in float32.
        max_positions: longest query length of ``upward="positions"``; a converted network supplies its own.
        scale: s of the log-normal posterior, > 0.
        prior_scale: standard deviation of log S under the log-normal prior, > 0.

    Raises:
        ValueError: an option is outside its range.

    Example:
        >>> BayesianAttention().kl_reduction
        'mean'
        >>> BayesianAttention.bam(5.0).concentration
        5.0
    """

    posterior: PosteriorFamily = "weibull"
    concentration: Literal["learned"] | float = "learned"
    rho: float = 4.0
    sigma: float = 0.0
    upward: UpwardAxis = "heads"
    prior: PriorKind = "contextual"
    prior_hidden: int = 20
    prior_concentration: float = 1.0
    rate: float = 1.0
    scores: ScoreScale = "normalised"
    noise: NoiseKind = "exact"
    kl_reduction: KLReduction = "mean"
    floor: float = 0.05
    max_positions: int | None = None
    scale: float = 0.5
    prior_scale: float = 1.0

    def __post_init__(self) -> None:
        check_choice(OWNER, "posterior", self.posterior, PosteriorFamily)
        check_choice(OWNER, "upward", self.upward, UpwardAxis)
        check_choice(OWNER, "prior", self.prior, PriorKind)
        check_choice(OWNER, "scores", self.scores, ScoreScale)
        check_choice(OWNER, "noise", self.noise, NoiseKind)
        check_choice(OWNER, "kl_reduction", self.kl_reduction, KLReduction)
        if isinstance(self.concentration, str):
            check_choice(OWNER, "concentration", self.concentration, Literal["learned"])
        else:
            check_number(OWNER, "concentration", self.concentration, positive=True)
        for name in ("rho", "sigma", "floor"):
            check_number(OWNER, name, getattr(self, name), positive=False)
        for name in ("prior_concentration", "rate", "scale", "prior_scale"):
            check_number(OWNER, name, getattr(self, name), positive=True)
        for name in ("prior_hidden", "max_positions"):
            value = getattr(self, name)
            if value is not None:
                check_integer(OWNER, name, value, least=1)
        if self.posterior == "lognormal" and self.sigma > 0:
            raise ValueError(
                "BayesianAttention: sigma belongs to the Weibull posterior; with 'lognormal' leave it 0"
            )

    @property
    def learns_concentration(self) -> bool:
        """True when k depends on the upward path."""
        return self.posterior == "weibull" and self.concentration == "learned" and self.rho > 0

    @property
    def learns_scale(self) -> bool:
        """True when lambda depends on the upward path."""
        return self.posterior == "weibull" and self.sigma > 0

    @property
    def has_upward_path(self) -> bool:
        """True when the posterior needs the upward path h."""
        return self.learns_concentration or self.learns_scale

    @property
    def has_parameters(self) -> bool:
        """True when a site with these options holds parameters of its own."""
        return self.has_upward_path or self.prior == "contextual"

    @classmethod
    def paper(cls, **options: Any) -> BayesianAttention:
        """The settings of Zhang et al. 2021, literally; ``options`` override single ones.

        rho 1.5, sigma 1e-6, upward maps along positions, raw scores, noise from (0.1, 0.9), KL summed, no floor. Causal
        networks need ``upward="heads"``.
        """
        settings: dict[str, Any] = {
            "rho": 1.5,
            "sigma": 1e-6,
            "upward": "positions",
            "scores": "raw",
            "noise": "truncated",
            "kl_reduction": "sum",
            "floor": 0.0,
        }
        return cls(**(settings | options))

    @classmethod
    def bam(cls, concentration: float = 10.0, **options: Any) -> BayesianAttention:
        """Bayesian attention modules (Fan et al. 2020): constant k, no upward path; ``options`` override."""
        return cls(**({"concentration": concentration} | options))

    def build(
        self, num_heads: int, head_dim: int, *, causal: bool = False, max_positions: int | None = None
    ) -> AttentionSite:
        """Makes the module that holds one attention call's prior and posterior networks.

        Args:
            num_heads: H.
            head_dim: D, size of a key head.
            causal: whether queries see only earlier keys.
            max_positions: longest query length, for ``upward="positions"``.

        Returns:
            The site, to be called with queries, keys and values or handed to :func:`probattn.attention`.
        """
        from probattn.sites.site import AttentionSite, SiteSpec

        spec = SiteSpec(num_heads, head_dim, causal=causal, max_positions=max_positions)
        return AttentionSite(self, spec)
