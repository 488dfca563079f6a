"""Frozen records: models, roles and measures; data sets, scores, differences, training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from probattn.inference.records import Number
from probattn.sites import METHODS, BayesianAttention

ModelKey = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
"""A model: "deterministic", the baseline; a network of deterministic attention, by the ``key`` of its method;
"variational", whose target tokens have a latent source token each; "bayesian_mean", the mean over posterior draws;
"bayesian_expectation", the network at the posterior expectation; or "bayesian_moments", the mean in closed form."""

LATENT = BayesianAttention.key

BESIDE: tuple[ModelKey, ...] = ("bayesian_expectation", "bayesian_moments")
"""Further predictions of a network of latent attention, beside those of draws."""


class _Keys(Sequence[str]):
    """Keys of models in the order of tables, those of the methods registered by now among them."""

    def __init__(self, first: tuple[str, ...] = (), last: tuple[str, ...] = ()) -> None:
        self._first, self._last = first, last

    def __getitem__(self, index: Any) -> Any:
        methods = (item.key for item in METHODS if item.key != LATENT)
        return (*self._first, *methods, "variational", *self._last)[index]

    def __len__(self) -> int:
        return len(self[:])


SINGLE = _Keys()
"""Models of deterministic attention, one pass each, that a run can be about."""

MODELS = _Keys(("deterministic",), (LATENT, *BESIDE))
"""All models."""

Role = Literal["in_domain", "shifted", "out_of_domain"]
"""The role of a data set: the task itself, the task under a shifted distribution, or out-of-distribution inputs."""

ClassMeasure = Literal["matthews", "f1"]
"""Measures of the predicted classes that are taken where they are asked for."""

DrawsSource = Literal["posterior", "dropout", "moments"]
"""Where draws come from; of "moments" they are points."""

DETECTION = ("auroc", "fpr95")
"""Measures of OOD detection."""

Probability = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Record(BaseModel):
    """A frozen record: unknown fields, wrong types, NaN and infinities are errors; a missing measurement is None."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def check_matrix(what: str, rows: Sequence[Sequence[Any]], height: int, width: int) -> None:
    """Raises ``ValueError`` unless there are ``height`` rows of ``width`` numbers."""
    lengths = {len(row) for row in rows}
    if len(rows) != height or lengths - {width}:
        raise ValueError(f"{what}: expected {height} rows of {width}, got {len(rows)} of {sorted(lengths)}")


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
    """Measures of one model on one data set.

    Attributes:
        model: which model.
        data: key of the data set.
        values: measures by name, and further figures that are not compared; None where one cannot be measured.
        entropy: predictive entropy; None where there are no classes, and for means over several runs.
        reliability: reliability bins, the empty ones left out.
        risk_coverage: risk-coverage curve.
        pavpu_curve: PAvPU over thresholds.
        draws: where the draws behind PAvPU come from; of "moments" they are points that have the closed form's mean and
            covariance of the logits, as many as draws.
    """

    model: ModelKey
    data: str
    values: Mapping[str, float | None]
    entropy: Entropy | None = None
    reliability: tuple[ReliabilityBin, ...] = ()
    risk_coverage: RiskCoverage | None = None
    pavpu_curve: tuple[PAvPUPoint, ...] = ()
    draws: DrawsSource | None = None


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

    measure: str
    data: str


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


class RunDescription(Record):
    """Description of a run, and how to repeat it.

    Attributes:
        name: a title.
        method: the attention method with its settings, in words.
        network: the pretrained network.
        data: where the data come from.
        train_size: number of training examples.
        steps: optimiser steps of each model.
        seconds: wall-clock time of training, the baseline's among it.
        num_samples: P, posterior draws of a prediction.
        device: device and precision.
        seed: the run's one seed.
        created: date and time, ISO 8601.
        versions: package versions by name.
        recipe: the resolved recipe (YAML).
        commands: commands that repeat the run.
        search: how texts were searched for, in words; empty where predictions are not texts.
        restricted: options that kept the evaluation to a part of the data or to fewer draws; empty for a whole one.
    """

    name: str
    method: str
    network: str
    data: str
    train_size: Count
    steps: Count
    seconds: Annotated[float, Field(ge=0)]
    num_samples: Annotated[int, Field(ge=1)]
    device: str
    seed: int
    created: str
    versions: Mapping[str, str] = Field(default_factory=dict)
    recipe: str = ""
    commands: tuple[str, ...] = ()
    search: str = ""
    restricted: str = ""


class DataSet(Record):
    """A data set that was predicted.

    Attributes:
        key: its name in the other records.
        title: its displayed name.
        role: its use.
        size: N.
        labelled: whether accuracy and calibration could be measured.
        source: where it comes from.
        unit: what its examples are, in the plural.
        cluster: what a bootstrap draws, each with all its examples, in the plural; "" for the examples themselves.
        clusters: their number; None for N.
    """

    key: str
    title: str
    role: Role
    size: Annotated[int, Field(ge=1)]
    labelled: bool
    source: str = ""
    unit: str = "examples"
    cluster: str = ""
    clusters: Annotated[int, Field(ge=1)] | None = None

    @property
    def drawn(self) -> int:
        """Number of what a bootstrap draws."""
        return self.size if self.clusters is None else self.clusters


class SingleRun(Record):
    """One of several runs of a recipe.

    Attributes:
        folder: the run's, from the folder of the records.
        seed: its seed.
    """

    folder: str
    seed: int


class Listing(Record):
    """A table of words and numbers that the report shows as it is.

    Attributes:
        title: what it shows.
        headings: of its columns.
        rows: cells; a number has the digits that are shown.
        words: columns, from the left, that hold words.
        about: how it is read.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: Count = 1
    about: str = ""

    @model_validator(mode="after")
    def _whole_rows(self) -> Listing:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"expected {len(self.headings)} cells in each row, got {len(row)}: {row}")
        return self
