"""Options of Bayesian attention: belief networks (BABN) and the Bayesian attention modules (BAM)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from probattn.options import Count, NonNegative, Options, Positive, Preset
from probattn.sites.method import Calls, Layers, Measured, Method, RecipeKeys

if TYPE_CHECKING:
    from probattn.sites.site import AttentionSite

PosteriorFamily = Literal["weibull", "lognormal"]
UpwardAxis = Literal["heads", "positions"]
PriorKind = Literal["contextual", "constant"]
ScoreScale = Literal["normalised", "raw"]
WidthScores = Literal["shared", "separate"]
NoiseKind = Literal["exact", "truncated"]
KLReduction = Literal["mean", "keys", "sum"]


RELEASE_KL_WEIGHT = 0.5 / 64
"""Weight of the mean KL in the authors' code: 1 / (1 + e^0), in a sum over the 64 data of a batch."""
LATER = ("prior_strength", "hidden_scale", "width_scores")
"""Options that the descriptions in older checkpoints lack."""


@dataclass(frozen=True)
class AttentionWords(Options):
    """Keys of a latent attention recipe besides the method's options.

    Args:
        method: "deterministic" (the network's own attention), "babn" (Bayesian attention belief networks) or "bam"
            (Bayesian attention modules: one fixed concentration).
        preset: source of the values of keys that are left out: this library's defaults, the settings of the BABN paper,
            Zhang et al. 2021a ("paper"), or those of its authors' code ("release").
        layers: layers of each stack whose attention is replaced; numbers count from 0, negative ones from the end.
        kind: kind of attention that is replaced.
    """

    method: Literal["deterministic", "babn", "bam"] = "babn"
    preset: Preset = "default"
    layers: Layers = "all"
    kind: Calls = "all"


@dataclass(frozen=True)
class BayesianAttention(Method):
    r"""Latent unnormalised attention weights S with a gamma prior and a Weibull posterior (Zhang et al. 2021a).

    .. math::
        S &\sim \mathrm{Gamma}(\alpha, \beta), \qquad W = S / \textstyle\sum_{keys} S \\
        q(S) &= \mathrm{Weibull}(k, \lambda), \quad k = \rho\,\mathrm{softplus}(f_k(h)) + e^{\Phi} + \mathrm{floor} \\
        \lambda &= \sigma\,\mathrm{softplus}(f_\lambda(h)) + e^{\Phi} / \Gamma(1 + 1/k)

    with scores :math:`\Phi`, linear maps f and states h of the upward path (section 3.2, :class:`UpwardChain`).
    :meth:`paper` has the paper's settings, :meth:`release` those of the authors' code, :meth:`bam` a constant k.

    Args:
        posterior: family of the posterior of an unnormalised weight S: "weibull", or "lognormal" (BAM), in which log S
            is normal with mean ``scores - scale^2 / 2`` and standard deviation ``scale``.
        concentration: concentration k of the Weibull posterior: "learned" (BABN), or a constant > 0 (BAM). In a recipe
            the default is "learned" for the method "babn" and 10 for "bam". No effect with the posterior "lognormal".
        rho: factor rho >= 0 in ``k = rho softplus(f_k(h)) + exp(scores) + floor``, with the states h of the upward path
            (learned maps of the first call's scores). With 4, k is about 3 at the start, and weights vary about as
            much as under attention dropout of 0.1. The paper uses 1.5, with similar results for 1 to 4.
        sigma: weight of the upward path in the Weibull scale lambda, >= 0. 0 keeps E[S] = exp(scores), so a converted
            network predicts exactly as before until it is trained; the paper uses 1e-6.
        upward: axis that the linear maps of the upward path mix: "heads" (any length, works with causal masks) or
            "positions" (along queries, up to ``max_positions``; only for networks without causal masks or cache).
        hidden_scale: factor > 0 of each state h of the upward path, 1 in the paper. With a small factor, only
            exp(scores) makes k differ between query-key pairs.
        width_scores: scores in the term exp(scores) of k, which sets the width of the posterior: "shared", the
            attention scores, or "separate", scaled dot products of further linear maps of queries and keys. "separate"
            needs a learned concentration, normalised scores and a floor.
        prior: concentration alpha of the gamma prior: "contextual" (softmax over keys of an MLP of the key) or
            "constant".
        prior_hidden: hidden width of the contextual prior's MLP.
        prior_concentration: concentration alpha of the constant prior, > 0.
        rate: rate beta of the gamma prior, > 0.
        prior_strength: factor s > 0 in the gamma prior Gamma(s alpha, s beta): it divides the variance and keeps the
            mean. The paper has 1; a contextual prior over n keys then has a standard deviation of about sqrt(n) times
            its mean. "learned", for the contextual prior: one s for each attention call, trained from 1.
        scores: "normalised" replaces the scores by their log-softmax, a shift per query that bounds exp(scores) and the
            KL; "raw" is the paper's form, in which exp(scores) can overflow.
        noise: uniform noise from which samples are computed: "exact", or "truncated" to (0.1, 0.9) as in the paper; the
            samples then do not follow the Weibull distribution whose KL is used.
        kl_reduction: how the KL of an attention call enters the objective: "mean" over valid query-key pairs, "keys"
            (sum over keys, mean over queries and heads) or "sum" (the exact ELBO if the KL weight is 1). Reports state
            the reduction, and also the unreduced KL in nats.
        floor: constant added to k, >= 0. If it and ``rho`` are 0, k = exp(scores) can be so small that E[S] or the KL
            overflows (k itself is never below 3e-10 in float32).
        max_positions: maximum number of queries where ``upward`` is "positions"; None for the network's limit.
        scale: standard deviation s of log S under the log-normal posterior, > 0.
        prior_scale: standard deviation of log S under the log-normal prior, > 0.

    Raises:
        ValueError: an option is outside its range.

    Example:
        >>> BayesianAttention().kl_reduction
        'mean'
        >>> BayesianAttention.bam(5.0).concentration
        5.0
    """

    kind: ClassVar[str] = "bayesian"
    section: ClassVar[str] = "attention"
    key: ClassVar[str] = "bayesian_mean"
    measured: ClassVar[tuple[Measured, ...]] = ("posterior",)
    recipe: ClassVar[RecipeKeys] = RecipeKeys(
        "The attention method.", extra=AttentionWords, order=("method", "preset", "layers", "kind")
    )

    posterior: PosteriorFamily = "weibull"
    concentration: Literal["learned"] | Positive = "learned"
    rho: NonNegative = 4.0
    sigma: NonNegative = 0.0
    upward: UpwardAxis = "heads"
    prior: PriorKind = "contextual"
    prior_hidden: Count = 20
    prior_concentration: Positive = 1.0
    rate: Positive = 1.0
    prior_strength: Literal["learned"] | Positive = 1.0
    scores: ScoreScale = "normalised"
    noise: NoiseKind = "exact"
    kl_reduction: KLReduction = "mean"
    floor: NonNegative = 0.05
    max_positions: Count | None = None
    scale: Positive = 0.5
    prior_scale: Positive = 1.0
    hidden_scale: Positive = 1.0
    width_scores: WidthScores = "shared"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.posterior == "lognormal" and self.sigma > 0:
            raise ValueError(
                "BayesianAttention: sigma belongs to the Weibull posterior; with 'lognormal' leave it 0"
            )
        if self.posterior == "lognormal" and self.prior_strength != 1:
            raise ValueError(
                "BayesianAttention: prior_strength belongs to the gamma prior; with 'lognormal' use prior_scale"
            )
        if self.width_scores == "separate" and not self.learns_concentration:
            raise ValueError(
                "BayesianAttention: width_scores='separate' belongs to a learned concentration with rho > 0; leave it "
                "'shared'"
            )
        if self.width_scores == "separate" and (self.scores == "raw" or not self.floor):
            raise ValueError(
                "BayesianAttention: width_scores='separate' expects scores='normalised' and a floor > 0, without which "
                f"k is lost in rounding, got scores={self.scores!r} and floor={self.floor:g}"
            )
        if self.hidden_scale != 1 and not self.has_upward_path:
            raise ValueError(
                "BayesianAttention: hidden_scale belongs to the upward path, which is not there; leave it 1"
            )
        if self.learns_strength and self.prior != "contextual":
            raise ValueError(
                "BayesianAttention: expected prior='contextual' with prior_strength='learned', got 'constant'"
            )

    def __repr__(self) -> str:
        """That of dataclasses; later options at their defaults are left out, as in checkpoints that are older."""
        names = (
            field.name
            for field in fields(self)
            if field.name not in LATER or getattr(self, field.name) != field.default
        )
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def summary(self) -> str:
        """The method's name: "BABN" if ``concentration`` is "learned", else "BAM"."""
        return "BABN" if self.concentration == "learned" else "BAM"

    @property
    def learns_concentration(self) -> bool:
        """True if k depends on the upward path."""
        return self.posterior == "weibull" and self.concentration == "learned" and self.rho > 0

    @property
    def learns_scale(self) -> bool:
        """True if lambda depends on the upward path."""
        return self.posterior == "weibull" and self.sigma > 0

    @property
    def learns_strength(self) -> bool:
        """True if ``prior_strength`` is "learned"."""
        return self.prior_strength == "learned"

    @property
    def log_strength(self) -> float:
        """The logarithm of ``prior_strength``; 0 if it is "learned"."""
        return 0.0 if isinstance(self.prior_strength, str) else math.log(self.prior_strength)

    @property
    def prior_rate(self) -> float:
        """Rate s beta of the gamma prior; beta if the strength s is "learned"."""
        return self.rate if isinstance(self.prior_strength, str) else self.rate * self.prior_strength

    @property
    def has_upward_path(self) -> bool:
        """True if k or lambda depends on the upward path."""
        return self.learns_concentration or self.learns_scale

    @property
    def has_constant_spread(self) -> bool:
        """True if the standard deviation over the mean of S is the same at all pairs."""
        return not self.has_upward_path and (self.posterior == "lognormal" or self.concentration != "learned")

    @property
    def has_parameters(self) -> bool:
        """True if a site with these options has parameters: those of the upward path or of the contextual prior."""
        return self.has_upward_path or self.prior == "contextual"

    @classmethod
    def paper(cls, **options: Any) -> BayesianAttention:
        """The settings of Zhang et al. 2021a; ``options`` replace single ones. Causal networks need upward "heads"."""
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
    def release(cls, **options: Any) -> BayesianAttention:
        """The settings of the code that Zhang et al. 2021a released; ``options`` replace single ones.

        They are those of its deleted script (MCAN, github.com/szhang42/Bayesian_Attention_Belief_Networks): rho 1.7,
        sigma 1e-6, a floor of 0.05, normalised scores, noise from (0.1, 0.9), maps along positions, states of the
        upward path times 1e-6, separate scores for k, the prior Gamma(1e-6 alpha, 1e-6) and the mean of the KL over
        pairs. The script's weight of this mean, 0.5 / 64 of the log-likelihood of one datum, must be set as KL weight
        of the training. Causal networks need ``upward="heads"``.
        """
        settings: dict[str, Any] = {
            "rho": 1.7,
            "sigma": 1e-6,
            "upward": "positions",
            "hidden_scale": 1e-6,
            "width_scores": "separate",
            "prior_strength": 1e-6,
            "noise": "truncated",
        }
        return cls(**(settings | options))

    @classmethod
    def bam(cls, concentration: float = 10.0, **options: Any) -> BayesianAttention:
        """Bayesian attention modules (Fan et al. 2020): constant k, no upward path; ``options`` replace single ones."""
        return cls(**({"concentration": concentration} | options))

    def build(
        self, num_heads: int, head_dim: int, *, causal: bool = False, max_positions: int | None = None
    ) -> AttentionSite:
        """Makes the site of one attention call, a module with the parameters of its prior and posterior.

        Call the site with a name, queries, keys and values, or pass it to :func:`probattn.attention` as ``method``.
        Arguments and errors are those of :class:`probattn.sites.SiteSpec` and :class:`probattn.sites.AttentionSite`.
        """
        from probattn.sites.site import AttentionSite, SiteSpec  # which imports these options

        return AttentionSite(self, SiteSpec(num_heads, head_dim, causal, max_positions))
