"""Runs what a table needs, once, and reads its figures from the scores of the runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from probattn.data import DataError
from probattn.inference.checkpoint import CHECKPOINTS
from probattn.reproduce.declarations import Cell, Table, find_table
from probattn.reproduce.options import ReproduceOptions
from probattn.reproduce.records import CellRecord, TableRecord, record_file, write_record
from probattn.tasks import RunError, load_results, load_task, train
from probattn.tasks.devices import current_device
from probattn.tasks.progress import note
from probattn.tasks.run import check_folder, evaluate, package_versions
from probattn.tasks.task import RECIPE, RESULTS

ALONE = "report.baseline=false"
"""Rows of a table are networks of their own, so that none needs a baseline beside it."""


@dataclass(frozen=True)
class _Job:
    """A run of a table with one seed, and the cells that it fills."""

    name: str
    seed: int
    folder: Path
    recipe: str
    keys: tuple[str, ...]
    cells: tuple[Cell, ...]

    def task(self) -> Any:
        """The task of the run."""
        keys = [*self.keys, f"training.seed={self.seed}"]
        task = load_task(self.recipe, keys)
        report = getattr(task.recipe, "report", None)
        return load_task(self.recipe, [*keys, ALONE]) if hasattr(report, "baseline") else task


def reproduce(
    key: str, options: ReproduceOptions, folder: Path, *, quiet: bool = False
) -> tuple[Path, TableRecord]:
    """Trains and measures what is missing of a table, and writes its record.

    A run that was interrupted goes on where it was, one that is finished is not run again, and the checkpoints of a
    finished one go. The record is written anew after each run. Several processes with the same command share the runs.

    Args:
        key: of the table, such as "babn/table-5".
        options: what of it is run, and how large.
        folder: of the runs, ``ROW/seed-N`` or ``ROW/COLUMN/seed-N``, and of ``table.json``.
        quiet: no progress bars of trainings.

    Returns:
        The record's file and the record. Cells whose data are missing have the reason; at the small size those that are
        declared so are not tried, unless their row or column is named.

    Raises:
        RunError: there is no such table, no runs of recipes make it, or the folder holds runs of other recipes.
    """
    table = find_table(key)
    cells = _selected(key, table, options)
    jobs = list(_jobs(cells, options, folder))
    reasons: dict[str, str] = {}
    times: dict[str, list[float]] = {}
    started, trained = time.monotonic(), 0
    skipped = {
        job.name: job.cells[0].without
        for job in jobs
        if options.size == "small"
        and all(cell.without and not _is_named(cell, options) for cell in job.cells)
    }
    for number, job in enumerate(jobs, 1):
        if job.name in reasons or job.name in skipped:
            continue
        left = [other for other in jobs[number - 1 :] if not (other.folder / RESULTS).exists()]
        if job in left:
            spent = (time.monotonic() - started) / max(1, trained)
            about = f", about {timedelta(seconds=round(spent * len(left)))} left" if trained else ""
            note(f"run {number} of {len(jobs)}: {job.name}, seed {job.seed}{about}")
        try:
            trained += _finish(job, quiet=quiet)
        except DataError as error:
            reasons[job.name] = str(error)
            note(f"{job.name}: {error}")
        else:
            if (job.folder / RESULTS).exists():
                times.setdefault(job.name, []).append(load_results(job.folder).run.seconds / 60)
        write_record(_record(key, options, jobs, skipped | reasons, times), record_file(folder))
    record = _record(key, options, jobs, skipped | reasons, times)
    write_record(record, record_file(folder))
    return record_file(folder), record


def _selected(key: str, table: Table, options: ReproduceOptions) -> list[Cell]:
    """The cells that options ask for."""
    if not table.rows:
        how = table.command or f"python tests/benchmarks/study.py {table.study}"
        words = table.not_measured or f"{how} makes it"
        raise RunError(f"{key}: expected a table that runs of recipes make; {words}")
    for axis, names, present in (
        ("rows", options.rows, table.rows),
        ("columns", options.columns, table.columns),
    ):
        unknown = [name for name in names if name not in present]
        if unknown:
            raise RunError(f"{key}, --{axis}: expected some of {', '.join(present)}, got {unknown[0]!r}")
    return [
        cell
        for cell in table.cells(options.size)
        if (not options.rows or cell.row in options.rows)
        and (not options.columns or cell.column in options.columns)
    ]


def _is_named(cell: Cell, options: ReproduceOptions) -> bool:
    """Whether a cell that is left out at the small size was asked for."""
    return cell.row in options.rows or cell.column in options.columns


def _jobs(cells: Sequence[Cell], options: ReproduceOptions, folder: Path) -> Iterator[_Job]:
    """Seed by seed, so that an early end leaves whole tables."""
    by_run: dict[str, list[Cell]] = {}
    for cell in cells:
        by_run.setdefault(cell.run, []).append(cell)
    for seed in range(options.seeds):
        for name, of_run in by_run.items():
            keys = (*of_run[0].keys, *options.set)
            run_folder = folder / name / f"seed-{seed}"
            yield _Job(name, seed, run_folder, of_run[0].recipe, keys, tuple(of_run))


def _finish(job: _Job, *, quiet: bool) -> bool:
    """Trains and measures a run; whether it did, or another process or an earlier call."""
    task = job.task()
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(job.folder.with_name(f".{job.folder.name}.lock"), timeout=0):
            if (job.folder / RESULTS).exists():
                check_folder(task, job.folder, resume=True)
                return False
            train(task, job.folder, resume=(job.folder / RECIPE).exists(), quiet=quiet)
            evaluate(task, job.folder)
            shutil.rmtree(job.folder / CHECKPOINTS, ignore_errors=True)
            return True
    except Timeout:
        note(f"{job.folder}: another process is at it; the same command has its figures when that is done")
        return False


def _record(
    key: str,
    options: ReproduceOptions,
    jobs: Sequence[_Job],
    reasons: dict[str, str],
    times: dict[str, list[float]],
) -> TableRecord:
    cells: dict[str, dict[str, CellRecord]] = {}
    for job in jobs:
        done = (job.folder / RESULTS).exists()
        results = load_results(job.folder) if done else None
        for cell in job.cells:
            row = cells.setdefault(cell.row, {})
            before = row.get(cell.column, CellRecord(recipe=cell.recipe, keys=cell.keys))
            values = dict(before.values)
            if results is not None:
                value = results.value(cell.measure, cell.model or results.compared, cell.data)
                left_out = options.size == "small" and cell.without and not _is_named(cell, options)
                if value is not None and not left_out:
                    values[str(job.seed)] = round(value * cell.scale, 4)
            reason = cell.without if not values and cell.without else reasons.get(job.name, "")
            row[cell.column] = before.model_copy(update={"values": values, "reason": reason})
    minutes = {name: round(sum(spent) / len(spent), 1) for name, spent in times.items()}
    return TableRecord(
        table=key,
        size=options.size,
        set=tuple(options.set),
        cells=cells,
        minutes=minutes,
        versions=package_versions(),
        device=str(current_device()),
    )
