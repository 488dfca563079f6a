"""Frozen records: models, roles and measures; data sets, scores, differences, training curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from probattn.inference.records import Number

ModelKey = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
"""A network or prediction method: "deterministic", the baseline; the ``key`` of a method of deterministic attention;
"variational", a network with a latent source token for each target token; "bayesian_mean", the mean over posterior
draws; "bayesian_expectation", the network at the posterior expectation; "bayesian_moments", the mean in closed form."""

LATENT: ModelKey = "bayesian_mean"
"""The ``key`` of latent attention."""

BESIDE: tuple[ModelKey, ...] = ("bayesian_expectation", "bayesian_moments")
"""Further predictions of a network of latent attention, beside those of draws."""


class _Keys(Sequence[str]):
    """Keys of models in the order of tables, those of the methods registered by now among them."""

    def __init__(self, first: tuple[str, ...] = (), last: tuple[str, ...] = ()) -> None:
        self._first, self._last = first, last

    def __getitem__(self, index: Any) -> Any:
        from probattn.sites import METHODS  # here, since it imports torch, which lists of records do without

        methods = (item.key for item in METHODS if item.key != LATENT)
        return (*self._first, *methods, "variational", *self._last)[index]

    def __len__(self) -> int:
        return len(self[:])


SINGLE = _Keys()
"""Models of deterministic attention, which predict in one forward pass, that a run can be about."""

MODELS = _Keys(("deterministic",), (LATENT, *BESIDE))
"""Keys of all models, in the order of tables, including those of registered methods."""

Role = Literal["in_domain", "shifted", "out_of_domain"]
"""Role of a data set: the task itself, the task under a shifted distribution, or out-of-distribution (OOD) inputs."""

ClassMeasure = Literal["matthews", "f1"]
"""Optional measures of the predicted classes: Matthews correlation and F1."""

DrawsSource = Literal["posterior", "dropout", "moments"]
"""Source of draws; "moments" are points with the mean and covariance of the closed form."""

DETECTION = ("auroc", "fpr95")
"""Measures of OOD detection."""

Probability = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Record(BaseModel):
    """A frozen record: unknown fields, wrong types, NaN and infinities are errors; a missing measurement is None."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are not None; None without any."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def check_matrix(what: str, rows: Sequence[Sequence[Any]], height: int, width: int) -> None:
    """Raises ``ValueError`` unless there are ``height`` rows of ``width`` numbers."""
    lengths = {len(row) for row in rows}
    if len(rows) != height or lengths - {width}:
        raise ValueError(f"{what}: expected {height} rows of {width}, got {len(rows)} of {sorted(lengths)}")


class ReliabilityBin(Record):
    """Examples whose predicted class has a probability in ``[low, high)``, with a 95% Wilson interval of accuracy."""

    low: Probability
    high: Probability
    count: Count
    confidence: Probability
    accuracy: Probability
    accuracy_low: Probability
    accuracy_high: Probability


class PAvPUPoint(Record):
    """PAvPU if predictions with a p-value below ``threshold`` count as certain; ``certain`` is the share of these."""

    threshold: Probability
    value: Probability
    certain: Probability


class RiskCoverage(Record):
    """Error rate ``risk`` among the most confident share ``coverage`` of the examples, at some coverages up to 1."""

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
        model: the network or prediction method.
        data: key of the data set.
        values: measures by name, and further numbers that are not compared; None if one cannot be measured.
        entropy: predictive entropy; None without classes, and for means over several runs.
        reliability: reliability bins without the empty ones.
        risk_coverage: risk-coverage curve.
        pavpu_curve: PAvPU over thresholds.
        draws: source of the draws for PAvPU; with "moments" these are points that have the mean and the covariance of
            the logits in closed form.
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
    """A model's measure minus the deterministic baseline's, with an interval and p-values.

    Attributes:
        model: the network or prediction method that is compared.
        value: the difference; over several seeds the mean difference.
        low: lower end of the interval, which is not corrected for other comparisons.
        high: upper end of the interval.
        level: level of the interval; 1 - level is the error rate at which differences are called significant.
        p: two-sided p-value of the hypothesis that the difference is 0.
        corrected: ``p`` corrected by Holm's method over all comparisons of the model in one evaluation.
        resamples: bootstrap resamples of examples that gave interval and ``p``; None over several seeds.
        seeds: difference for each seed, in the order of the runs; empty for one run.
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
    """A comparison by one measure on one data set, paired by example, or by seed.

    Attributes:
        measure: name of the measure.
        data: key of the data set.
    """

    measure: str
    data: str


class Curve(Record):
    """One quantity over training steps; each value is the mean of ``window`` neighbouring records."""

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
        name: title of the run.
        method: the attention method with its settings, as text.
        network: the pretrained network.
        data: source of the data.
        train_size: number of training examples.
        steps: optimiser steps of each network.
        seconds: wall-clock time of training in seconds, including the baseline.
        num_samples: P, number of posterior draws of a prediction.
        device: device and precision.
        seed: seed of the run.
        created: date and time, ISO 8601.
        versions: package versions by name.
        recipe: the resolved recipe (YAML).
        commands: commands that repeat the run.
        search: description of the search (decoding) that produced texts; empty if predictions are not texts.
        restricted: options that restricted the evaluation to a part of the data or to fewer draws; empty if none did.
        parameters: number of parameters of the network and its posterior; None if they were not counted.
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
    parameters: Count | None = None


class DataSet(Record):
    """Description of an evaluated data set.

    Attributes:
        key: name of the data set in other records.
        title: displayed name.
        role: role of the data set.
        size: N, number of examples.
        labelled: whether labels exist, so accuracy and calibration can be measured.
        source: origin of the data.
        unit: noun for the examples, in the plural.
        cluster: noun, in the plural, for the clusters that the bootstrap draws; "" if it draws single examples.
        clusters: number of clusters; None if the bootstrap draws examples.
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
        """Number of clusters or examples that a bootstrap resample draws."""
        return self.size if self.clusters is None else self.clusters


class SingleRun(Record):
    """One of several runs of a recipe.

    Attributes:
        folder: folder of the run, relative to that of the combined results.
        seed: seed of the run.
    """

    folder: str
    seed: int


class Listing(Record):
    """A table that the report shows without changes.

    Attributes:
        title: title of the table.
        headings: headings of the columns.
        rows: cells as text, numbers already rounded.
        words: number of columns, from the left, that hold words instead of numbers.
        about: explanation of the table.
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
