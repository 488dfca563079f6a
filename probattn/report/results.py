"""The records of a run, and reading and writing them as ``metrics.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator

from probattn.checks import OneLineError, shown
from probattn.files.durable import write_atomically
from probattn.files.json_files import JSONError, read_json
from probattn.report import record
from probattn.report.alignment import Alignment
from probattn.report.attention import AttentionExample, Example
from probattn.report.bootstrap import is_reliable
from probattn.report.dynamics import Dynamics
from probattn.report.heads import Heads
from probattn.report.measures import CLASS_MEASURES, MeasureText, Verdict
from probattn.report.sites import EdgeAttention, SiteHealth
from probattn.report.words import WordsExample

SCHEMA_VERSION = 4
"""Version of the format of ``metrics.json``; :func:`read_results` refuses files of another version."""


class Results(record.Record):
    """All records of the report of a run, or of several runs (:func:`~probattn.report.combine`).

    Attributes:
        schema_version: version of the format.
        kind: the task, by the name of its section in recipes, or "uncertainty" for classification.
        measures: the measures by name, the most important first, with texts, direction and unit.
        run: description of the run; for several runs, of the first one with the total time.
        runs: the single runs over which these results are means; empty for the results of one run.
        classes: class names by label; empty without classes.
        data: the data sets, the in-domain one first.
        scores: measures, one record per model and data set.
        differences: measures of the run's network minus those of the deterministic one, paired by example or by seed.
        health: state of the posterior, one record per site.
        curves: training curves.
        attention: inputs with attention maps.
        words: inputs with the words that support or oppose the prediction, and those that make it uncertain.
        listings: tables, for instance of single classes.
        uncertain: the most uncertain inputs.
        mistakes: the most confident wrong predictions.
        binned: the most confident wrong predictions of each bin of the in-domain reliability diagram.
        alignment: distances between queries and keys; None if not measured.
        heads: diversity and importance of attention heads; None if not measured.
        edges: attention over the edges of a graph, one record per network and layer.
        dynamics: agreement of attention with lexical probes during training, the run's network last; empty if not
            recorded.
    """

    schema_version: Literal[4] = 4
    kind: str = "uncertainty"
    measures: Annotated[Mapping[str, MeasureText], Field(min_length=1)] = dict(CLASS_MEASURES)
    run: record.RunDescription
    runs: tuple[record.SingleRun, ...] = ()
    classes: tuple[str, ...] = ()
    data: Annotated[tuple[record.DataSet, ...], Field(min_length=1)]
    scores: tuple[record.Scores, ...]
    differences: tuple[record.Difference, ...] = ()
    health: tuple[SiteHealth, ...] = ()
    curves: tuple[record.Curve, ...] = ()
    attention: tuple[AttentionExample, ...] = ()
    words: tuple[WordsExample, ...] = ()
    listings: tuple[record.Listing, ...] = ()
    uncertain: tuple[Example, ...] = ()
    mistakes: tuple[Example, ...] = ()
    binned: tuple[Example, ...] = ()
    alignment: Alignment | None = None
    edges: tuple[EdgeAttention, ...] = ()
    heads: Heads | None = None
    dynamics: tuple[Dynamics, ...] = ()

    @model_validator(mode="after")
    def _known_data(self) -> Results:
        keys = [item.key for item in self.data]
        examples = [*self.uncertain, *self.mistakes, *self.binned]
        examples += [item.example for item in self.attention] + [item.example for item in self.words]
        named = [*(item.data for item in self.scores), *(item.data for item in self.differences)]
        named += [item.data for item in examples if item.data is not None]
        unknown = sorted(set(named) - set(keys))
        if unknown or len(set(keys)) != len(keys):
            raise ValueError(
                f"expected every record to name one of the data sets {keys}, got {unknown or keys}"
            )
        for score in self.scores:
            for name, text in self.measures.items():
                value = score.values.get(name)
                share = text.unit == "share" and CLASS_MEASURES.get(name) == text  # others may be differences
                if share and value is not None and not 0 <= value <= 1:
                    raise ValueError(
                        f"scores of {score.model} on {score.data}, {name}: expected a share in [0, 1], got {value:g}"
                    )
        unmeasured = sorted({item.measure for item in self.differences} - set(self.measures))
        if unmeasured:
            raise ValueError(f"expected differences of {list(self.measures)}, got {unmeasured}")
        return self

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs in these results."""
        return tuple(run.seed for run in self.runs) or (self.run.seed,)

    @property
    def in_domain(self) -> record.DataSet:
        """The data set of the task itself: the first in-domain one, or the first of all."""
        return next((item for item in self.data if item.role == "in_domain"), self.data[0])

    @property
    def compared(self) -> record.ModelKey:
        """Key of the compared model: a network without draws, "bayesian_mean", or the baseline if alone."""
        measured = {score.model for score in self.scores}
        order = (*record.SINGLE, record.LATENT, *record.BESIDE, "deterministic")
        return next((model for model in order if model in measured), record.LATENT)

    def score(self, model: record.ModelKey, data: str) -> record.Scores | None:
        """Scores of a model on a data set; None if they were not measured."""
        return next((item for item in self.scores if (item.model, item.data) == (model, data)), None)

    def difference(self, measure: str, model: record.ModelKey, data: str) -> record.Difference | None:
        """Difference to the baseline; None if it was not measured."""
        key = (measure, model, data)
        matches = (item for item in self.differences if (item.measure, item.model, item.data) == key)
        return next(matches, None)

    def value(self, measure: str, model: record.ModelKey, data: str) -> float | None:
        """A measure of a model on a data set; None if it was not measured."""
        score = self.score(model, data)
        return None if score is None else score.values.get(measure)

    def verdict(self, difference: record.Difference) -> Verdict:
        """Verdict on one of the differences; "unclear" if it is not significant."""
        examples = next(item.drawn for item in self.data if item.key == difference.data)
        if difference.measure in record.DETECTION:
            examples = min(examples, self.in_domain.drawn)
        if not is_reliable(difference, examples):
            return "unclear"
        return self.measures[difference.measure].verdict(difference.value)

    @property
    def intervals(self) -> str:
        """Description of what the intervals of differences are based on."""
        if self.runs:
            return "Student's t over seeds"
        return f"a paired bootstrap over {self.in_domain.cluster or 'examples'}"


Content = TypeVar("Content", bound=BaseModel)


class ResultsFileError(OneLineError):
    """A file is not a readable ``metrics.json``; the message names the file and what to do."""


def write_results(results: BaseModel, path: Path | str) -> Path:
    """Writes the records as JSON, atomically and without loss: :func:`read_results` returns equal records.

    Args:
        results: the records.
        path: the file, usually ``metrics.json``.

    Returns:
        The path.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    path = Path(path)
    fields = [
        f"{json.dumps(name)}: {_lines(value)}" for name, value in results.model_dump(mode="json").items()
    ]
    write_atomically(path, ("{\n" + ",\n".join(fields) + "\n}\n").encode())
    return path


def read_results(path: Path | str, kind: type[Any] = Results) -> Any:
    """Reads a file that :func:`write_results` wrote.

    Args:
        path: the file.
        kind: class of the records; tasks other than classification have separate classes in ``probattn.tasks``.

    Returns:
        The records, an instance of ``kind``.

    Raises:
        FileNotFoundError: there is no such file.
        ResultsFileError: the file is corrupt, of another schema version, or not such a file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "metrics.json"
        >>> _ = path.write_text('{"schema_version": 7}')
        >>> read_results(path)
        Traceback (most recent call last):
        ...
        probattn.report.results.ResultsFileError: .../metrics.json: expected schema version 4, got 7; ...
    """
    path = Path(path)
    header = _read(path, _Header)
    if header.schema_version is None:
        raise ResultsFileError(
            f"{path}: expected an object with a schema_version; this is no metrics.json of a run"
        )
    if header.schema_version != SCHEMA_VERSION:
        raise ResultsFileError(
            f"{path}: expected schema version {SCHEMA_VERSION}, got {shown(header.schema_version)}; evaluate the run "
            "again with this version of probattn (`probattn report RUN --again`), or read the file with the version "
            "that wrote it"
        )
    return _read(path, kind)


class _Header(BaseModel):
    """The schema version of a file, with its records unread."""

    model_config = ConfigDict(strict=True, extra="allow")

    schema_version: JsonValue = None


def _read(path: Path, kind: type[Content]) -> Content:
    try:
        return read_json(path, TypeAdapter(kind))
    except JSONError as error:
        raise ResultsFileError(f"{error}; evaluate the run again to write the file anew") from error


def _lines(value: Any) -> str:
    """JSON with one record of a list a line: readable, and small where there are attention maps."""
    if not isinstance(value, list) or not value:
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"
