"""What was measured in a run, as frozen records: the content of ``metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from probattn.inference.report.alignment_records import Alignment
from probattn.inference.report.claims import is_reliable
from probattn.inference.report.dynamics_records import Dynamics
from probattn.inference.report.edges import EdgeAttention
from probattn.inference.report.examples import AttentionExample, Example
from probattn.inference.report.heads_records import Heads
from probattn.inference.report.measurements import Curve, Difference, Scores, SiteHealth
from probattn.inference.report.measures import TEXTS, Verdict
from probattn.inference.report.record import DETECTION, SINGLE, Count, Measure, ModelKey, Record, Role

SCHEMA_VERSION = 2
"""Version of these records; a file of another version is refused."""


class RunDescription(Record):
    """What was run, and how to run it again.

    Attributes:
        name: a title for people.
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
    restricted: str = ""


class DataSet(Record):
    """A data set that was predicted.

    Attributes:
        key: its name in the other records.
        title: its name for people.
        role: what it is for.
        size: N.
        labelled: whether accuracy and calibration could be measured.
        source: where it comes from.
        unit: what its examples are, in the plural.
    """

    key: str
    title: str
    role: Role
    size: Annotated[int, Field(ge=1)]
    labelled: bool
    source: str = ""
    unit: str = "examples"


class SingleRun(Record):
    """One of several runs of a recipe.

    Attributes:
        folder: the run's, from the folder of the records.
        seed: its seed.
    """

    folder: str
    seed: int


class Results(Record):
    """Everything a report shows.

    Attributes:
        schema_version: version of these records.
        run: what was run; of several runs the first, with the time of all.
        runs: the single runs whose means these are; empty for the records of one run.
        classes: class names by label.
        data: the data sets, the in-domain one first.
        scores: one entry per model and data set.
        differences: the run's own network minus the deterministic one, on the same examples or of the same seeds.
        health: the posterior, per site.
        curves: training curves.
        attention: inputs with attention maps.
        uncertain: the most uncertain inputs.
        mistakes: the most confident mistakes.
        alignment: how far queries and keys lie apart; None where that was not measured.
        heads: how heads differ, and what each is good for; None where that was not measured.
        edges: attention over the edges of a graph, by model and layer.
        dynamics: how attention came about, by network, the run's own last; empty where that was not recorded.
    """

    schema_version: Literal[2] = 2
    run: RunDescription
    runs: tuple[SingleRun, ...] = ()
    classes: Annotated[tuple[str, ...], Field(min_length=2)]
    data: Annotated[tuple[DataSet, ...], Field(min_length=1)]
    scores: tuple[Scores, ...]
    differences: tuple[Difference, ...] = ()
    health: tuple[SiteHealth, ...] = ()
    curves: tuple[Curve, ...] = ()
    attention: tuple[AttentionExample, ...] = ()
    uncertain: tuple[Example, ...] = ()
    mistakes: tuple[Example, ...] = ()
    alignment: Alignment | None = None
    edges: tuple[EdgeAttention, ...] = ()

    heads: Heads | None = None
    dynamics: tuple[Dynamics, ...] = ()

    @model_validator(mode="after")
    def _known_data(self) -> Results:
        keys = [item.key for item in self.data]
        examples = [*self.uncertain, *self.mistakes, *(item.example for item in self.attention)]
        named = [*(item.data for item in self.scores), *(item.data for item in self.differences)]
        named += [item.data for item in examples if item.data is not None]
        unknown = sorted(set(named) - set(keys))
        if unknown or len(set(keys)) != len(keys):
            raise ValueError(
                f"expected every record to name one of the data sets {keys}, got {unknown or keys}"
            )
        return self

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs behind these records."""
        return tuple(run.seed for run in self.runs) or (self.run.seed,)

    @property
    def home(self) -> DataSet:
        """The data set of the task itself: the first in-domain one, or the first of all."""
        return next((item for item in self.data if item.role == "in_domain"), self.data[0])

    @property
    def contender(self) -> ModelKey:
        """What the run is about and is compared with the baseline: the mean over draws, or a network of one pass."""
        measured = {score.model for score in self.scores}
        return next((model for model in SINGLE if model in measured), "bayesian_mean")

    def score(self, model: ModelKey, data: str) -> Scores | None:
        """Scores of a model on a data set; None if it was not measured."""
        return next((item for item in self.scores if (item.model, item.data) == (model, data)), None)

    def difference(self, measure: Measure, model: ModelKey, data: str) -> Difference | None:
        """Difference to the baseline; None if it was not measured."""
        wanted = (measure, model, data)
        found = (item for item in self.differences if (item.measure, item.model, item.data) == wanted)
        return next(found, None)

    def verdict(self, difference: Difference) -> Verdict:
        """What one of the differences shows; "unclear" where it may not be spoken of."""
        sizes = {item.key: item.size for item in self.data}
        examples = sizes[difference.data]
        if difference.measure in DETECTION:
            examples = min(examples, self.home.size)
        if not is_reliable(difference, examples):
            return "unclear"
        return TEXTS[difference.measure].verdict(difference.value)
