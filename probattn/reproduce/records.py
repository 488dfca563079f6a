"""Measurements of tables: values by cell and seed, and the files that store them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from probattn.report.record import ModelKey, Record
from probattn.reproduce.declarations import Words
from probattn.reproduce.options import Size


class CellRecord(Record):
    """Measurements of a cell.

    Attributes:
        values: number in the paper's unit, by seed; empty if it was not measured.
        reason: reason why it was not measured; empty if it was.
        recipe: recipe of the runs.
        keys: overrides of the recipe's keys.
        source: origin of the values, if they are not only from runs of this row.
        diverged: seeds whose training ended because the loss was not finite.
    """

    values: Mapping[str, float] = {}
    reason: str = ""
    recipe: str = ""
    keys: Words = ()
    source: str = ""
    diverged: Words = ()

    @property
    def diverged_words(self) -> str:
        """Number of runs that diverged, in words; empty for none."""
        count = len(self.diverged)
        return f"{count} of {count + len(self.values)} runs diverged" if count else ""


class TableRecord(Record):
    """Measurements of a table.

    Attributes:
        table: key of the table.
        size: "small" or "paper".
        set: overrides of the keys of all recipes.
        cells: measurements by row and column.
        minutes: minutes per run by name of the run, mean over seeds.
        versions: versions of packages.
        device: device of the runs.
    """

    table: str
    size: Size
    set: Words = ()
    cells: Mapping[str, Mapping[str, CellRecord]]
    minutes: Mapping[str, float] = {}
    versions: Mapping[str, str] = {}
    device: str = ""

    @property
    def seeds(self) -> int:
        """The largest number of seeds of a cell."""
        return max((len(cell.values) for row in self.cells.values() for cell in row.values()), default=0)

    @property
    def measured(self) -> int:
        """Number of cells with a measured number."""
        return sum(bool(cell.values) for row in self.cells.values() for cell in row.values())


def figure(results: Any, measure: str, model: ModelKey | None, data: str) -> float | None:
    """A number from a run's results; None if it was not measured.

    Args:
        results: results of the run.
        measure: a score; ``entropy.mean`` for the mean predictive entropy; ``run.NAME`` for a number of the run's
            description; ``run.step_seconds`` for seconds per update; or ``SECTION.NAME`` for the mean over the sites
            and heads of a section: ``heads.distance``, ``alignment.mmd``, ``edges.query_norm``, ``health.spread``.
        model: model; None for the run's network. In experiments, the condition.
        data: data set of a score or an entropy. For a section the site whose values are used, or "test" for all sites.
            In experiments the evaluated step, or "test" for the last.
    """
    keys = data.split(", ")
    if len(keys) > 1:
        several = [value for key in keys if (value := figure(results, measure, model, key)) is not None]
        return statistics.fmean(several) if len(several) == len(keys) else None
    section, _, name = measure.rpartition(".")
    model = model or results.compared
    if not section:
        score: float | None = results.value(measure, model, data)
        return score
    record = getattr(results.score(model, data) if section == "entropy" else results, section, None)
    if section in ("entropy", "run") and record is not None:
        number = record.seconds / record.steps if name == "step_seconds" else getattr(record, name)
        return None if number is None else float(number)
    if callable(of_model := getattr(record, name, None)):  # heads.removable, heads.harmful
        share: float | None = of_model(model)
        return share
    values: list[float] = []
    for site in getattr(record, "sites", record) or ():
        counts = getattr(site, "model", model) == model and data in ("test", site.site)
        if counts and (value := getattr(site, name)) is not None:
            values += value if isinstance(value, tuple) else [value]
    return statistics.fmean(values) if values else None


def record_file(folder: Path) -> Path:
    """The file of a table's record in the folder of its runs."""
    return folder / "table.json"


def read_record(file: Path) -> TableRecord:
    """Reads the record of a table; ``ValueError`` if it is damaged."""
    return TableRecord.model_validate_json(file.read_text("utf-8"))


def measured(key: str) -> TableRecord | None:
    """This project's measurements of the table with this key; None if there are none."""
    paper, _, name = key.partition("/")
    resource = files("probattn.reproduce") / "records" / paper / f"{name}.json"
    if not resource.is_file():
        return None
    with as_file(resource) as file:
        return read_record(file)
