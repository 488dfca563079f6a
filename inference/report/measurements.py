"""Records of what was measured: scores, differences, the state of the posterior, training curves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from probattn.inference.records import Number
from probattn.inference.report.record import Count, Measure, ModelKey, Probability, Record
from probattn.sites.bayesian import KLReduction


class ReliabilityBin(Record):
    """Examples whose winning class has a probability in ``[low, high)``; 95% Wilson interval of accuracy."""

    low: Probability
    high: Probability
    count: Count
    confidence: Probability
    accuracy: Probability
    accuracy_low: Probability
    accuracy_high: Probability


class PAvPUPoint(Record):
    """PAvPU when a prediction counts as certain below the p-value ``threshold``; ``certain`` is the share of those."""

    threshold: Probability
    value: Probability
    certain: Probability


class RiskCoverage(Record):
    """Error among the most confident examples, from few (small coverage) to all (coverage 1), thinned for drawing."""

    coverage: tuple[Probability, ...]
    risk: tuple[Probability, ...]

    @model_validator(mode="after")
    def _same_length(self) -> RiskCoverage:
        if len(self.coverage) != len(self.risk):
            raise ValueError(
                f"expected as many risks as coverages ({len(self.coverage)}), got {len(self.risk)}"
            )
        return self


class Entropy(Record):
    """Predictive entropy over a data set in nats: its mean and its quantiles at equally spaced levels 0 to 1."""

    mean: float
    quantiles: Annotated[tuple[float, ...], Field(min_length=2)]


class Scores(Record):
    """What one model reached on one data set; None where it cannot be measured.

    Attributes:
        model: which model.
        data: key of the data set.
        accuracy: share of correct predictions.
        matthews: Matthews correlation of predicted and true classes, where it is asked for.
        f1: F1 of the second of two classes, else the mean over classes, where it is asked for.
        nll: mean negative log-likelihood of the label, nats; None also where it is infinite.
        brier: mean squared distance between the probabilities and the label's indicator, 0 to 2.
        ece: expected calibration error of the winning class.
        overconfidence: overconfidence error.
        aurc: area under the risk-coverage curve.
        pavpu: PAvPU at p < 0.05.
        auroc: of the entropy, telling this set (positive) from the in-domain set.
        fpr95: share of in-domain examples flagged when 95% of this set is.
        mutual_information: mean mutual information between prediction and posterior draw, nats.
        entropy: predictive entropy; None for means over several runs.
        reliability: reliability bins, the empty ones left out.
        risk_coverage: risk-coverage curve.
        pavpu_curve: PAvPU over thresholds.
        draws: where the draws behind PAvPU come from.
    """

    model: ModelKey
    data: str
    accuracy: Probability | None = None
    matthews: Annotated[float, Field(ge=-1, le=1)] | None = None
    f1: Probability | None = None
    nll: float | None = None
    brier: float | None = None
    ece: Probability | None = None
    overconfidence: Probability | None = None
    aurc: Probability | None = None
    pavpu: Probability | None = None
    auroc: Probability | None = None
    fpr95: Probability | None = None
    mutual_information: float | None = None
    entropy: Entropy | None = None
    reliability: tuple[ReliabilityBin, ...] = ()
    risk_coverage: RiskCoverage | None = None
    pavpu_curve: tuple[PAvPUPoint, ...] = ()
    draws: Literal["posterior", "dropout"] | None = None

    def measure(self, name: Measure) -> float | None:
        """Value of a measure by name."""
        value: float | None = getattr(self, name)
        return value


class Comparison(Record):
    """A model's measure minus the deterministic baseline's, with an interval and p values.

    Attributes:
        model: which model.
        value: the difference; over several seeds its mean.
        low: lower end of the interval of this comparison alone.
        high: its upper end.
        level: of the interval; 1 - level is the chance of an error that claims may have.
        p: two-sided, that the difference is 0.
        corrected: p by Holm's method over all comparisons of the model in one evaluation.
        resamples: of the bootstrap over examples that gave interval and p; None over several seeds.
        seeds: difference of each seed, in the order of the runs; empty for one run.
    """

    model: ModelKey
    value: float
    low: float
    high: float
    level: Probability = 0.95
    p: Probability
    corrected: Probability
    resamples: Annotated[int, Field(ge=1)] | None = None
    seeds: tuple[float, ...] = ()


class Difference(Comparison):
    """A comparison by one measure on one data set: on the same examples, or of the same seeds.

    Attributes:
        measure: which measure.
        data: key of the data set.
    """

    measure: Measure
    data: str


class SiteHealth(Record):
    """State of the posterior at one attention site.

    Attributes:
        site: its name.
        spread: mean over valid pairs of std/mean of the normalised weights W.
        concentration: mean Weibull concentration k; None for other posteriors.
        kl_nats: Kullback-Leibler divergence from the prior, nats per example, summed over pairs and heads.
        kl_reduced: the same after the reduction that training used.
        reduction: that reduction.
    """

    site: str
    spread: float
    kl_nats: float
    reduction: KLReduction
    concentration: float | None = None
    kl_reduced: float | None = None


class Curve(Record):
    """One quantity over training steps; long curves hold means of ``window`` neighbouring records."""

    model: ModelKey
    name: str
    kind: Literal["train", "validation"]
    steps: tuple[int, ...]
    values: tuple[Number, ...]
    window: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _same_length(self) -> Curve:
        if len(self.steps) != len(self.values):
            raise ValueError(f"expected as many values as steps ({len(self.steps)}), got {len(self.values)}")
        return self
