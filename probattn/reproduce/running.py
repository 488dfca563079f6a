"""Carries out the runs of a table, each once, and reads the table's numbers from their results."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from probattn.checks import grouped
from probattn.data import DataError
from probattn.files.durable import write_atomically
from probattn.inference.checkpoint import CHECKPOINTS
from probattn.inference.loop import NonFiniteError
from probattn.report import Agreement, ResultsFileError
from probattn.reproduce.declarations import LOADER, Cell, Table, find_table
from probattn.reproduce.options import ReproduceOptions
from probattn.reproduce.records import CellRecord, TableRecord, figure, read_record, record_file
from probattn.tasks import RunError, load_results, load_task, run_task, train
from probattn.tasks.agreement import AGREEMENT, measure_agreement
from probattn.tasks.errors import RecipeError
from probattn.tasks.progress import note
from probattn.tasks.run import check_folder, evaluate, kept_recipe
from probattn.tasks.task import MODEL, RECIPE, RESULTS

OTHER_SEED = 1000
"""What is added to the seed of a run for the second run of its agreement."""

DIVERGED = "diverged.txt"

ALONE = "report.baseline=false"
"""Rows of a table are networks of their own, so that none needs a baseline beside it unless the table asks for one."""


@dataclass(frozen=True)
class _Job:
    """A run of a table with one seed."""

    name: str
    seed: int
    folder: Path
    recipe: str
    keys: tuple[str, ...]
    agreement: Mapping[str, tuple[str, ...]] = field(hash=False)
    start: _Job | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is measured, or diverged."""
        agrees = not self.agreement or _agreement(self.folder) is not None
        return self.has_diverged or (agrees and _results(self.folder) is not None)

    @property
    def has_diverged(self) -> bool:
        """Whether its loss was not finite, or that of the run that it starts from; the file has the message."""
        return (self.folder / DIVERGED).exists() or (self.start is not None and self.start.has_diverged)

    @property
    def is_begun(self) -> bool:
        """Whether its folder has a run."""
        return (self.folder / RECIPE).exists()

    def task(self) -> Any:
        """The task of the run; of an experiment, whose runs have seeds of their own, the next so many."""
        recipe = load_task(self.recipe, self.keys).recipe
        keys = [*self.keys, f"training.seed={self.seed * getattr(recipe.training, 'runs', 1)}"]
        if self.start is not None:
            keys.append(f"network.name={json.dumps(str(self.start.folder / MODEL))}")
        if (self.folder / RESULTS).exists():  # which may have been made on another device
            keys.append(f"training.device={run_task(self.folder).recipe.training.device}")
        alone = [ALONE] if hasattr(getattr(recipe, "report", None), "baseline") else []
        return load_task(self.recipe, [*alone, *keys])

    def other_recipe(self) -> str:
        """How the recipe of the folder's run, or of the one that it starts from, differs from the job's; else empty."""
        before = self.start.other_recipe() if self.start is not None else ""
        if before or not self.is_begun:
            return before
        return _other_recipe(self, (self.folder / RECIPE).read_bytes())


@cache
def _other_recipe(job: _Job, recipe: bytes) -> str:
    """See :meth:`_Job.other_recipe`; ``recipe`` is that of the folder's run."""
    free = ("training.device", *(["network.name"] if job.start else []))
    try:
        task = job.task()
        if recipe != kept_recipe(task.recipe, job.folder).dump().encode():
            check_folder(task, job.folder, resume=True, free=free)
    except (RecipeError, RunError) as error:
        return str(error)
    return ""


def reproduce(
    key: str, options: ReproduceOptions, folder: Path, *, reuse: Path | None = None, quiet: bool = False
) -> tuple[Path, TableRecord]:
    """Trains and measures the missing runs of a table, and writes its record.

    Interrupted runs are continued, finished ones are not repeated; checkpoints of measured runs are deleted. The record
    is updated after each run; runs of other recipes, such as those of an earlier declaration, are left out of it. A run
    whose loss is not finite counts as finished: the record has its seed, and the message is in ``diverged.txt``; to
    repeat it, delete its folder. Several processes with the same command share the runs.

    Args:
        key: key of the table, such as "babn/table-5".
        options: part and size of the table.
        folder: folder of the runs, ``ROW/seed-N`` or ``ROW/COLUMN/seed-N``, and of ``table.json``.
        reuse: folder with runs of other tables, in subfolders; a finished run with the same recipe and seed is copied
            instead of trained again.
        quiet: whether to show no progress bars.

    Returns:
        The file of the record, and the record, with all runs in the folder. Cells whose data are missing, and those
        without a recipe at this size, have the reason.

    Raises:
        RunError: there is no such table, it is not made of runs of recipes, the folder holds another table or other
            recipes, or there is no folder to reuse.
        RecipeError: an override does not fit a recipe.
    """
    table = find_table(key)
    cells = _selected(key, table, options)
    jobs = list(_jobs(cells, options, folder))
    _check_record(key, options, record_file(folder))
    _check(jobs, options, reuse)
    _write(key, options, folder, {})
    reasons: dict[str, str] = {}
    passing: dict[str, str] = {}  # reasons that the next call need not have
    for job in _existing(key, options, folder):
        if other := job.other_recipe():
            passing[job.name] = f"{other}; the table leaves it out"
            note(passing[job.name])
    others = _finished_runs(reuse) if reuse else {}
    left = sum(not job.is_whole for job in jobs)
    started, trained = time.monotonic(), 0
    for number, job in enumerate(jobs, 1):
        if job.start is not None and job.start.name in reasons:
            reasons.setdefault(job.name, reasons[job.start.name])
        if job.name in reasons:
            continue
        if not job.is_whole:
            spent = (time.monotonic() - started) / max(1, trained)
            about = f", about {timedelta(seconds=round(spent * left))} left" if trained else ""
            note(f"run {number} of {len(jobs)}: {job.name}, seed {job.seed}{about}")
            left -= 1
        try:
            trained += _finish(job, others, quiet=quiet)
        except DataError as error:
            reasons[job.name] = str(error)
            note(f"{job.name}: {error}")
        except Timeout:
            passing[job.name] = "another process is at it; the same command has its figures when that is done"
            note(f"{job.folder}: {passing[job.name]}")
        _write(key, options, folder, reasons)
    record = _write(key, options, folder, reasons)
    return record_file(folder), _record(key, options, folder, passing | reasons, record)


def _check(jobs: Sequence[_Job], options: ReproduceOptions, reuse: Path | None) -> None:
    """Refuses what cannot be run, before anything is trained or written."""
    if reuse is not None and not reuse.is_dir():
        raise RunError(f"--reuse: expected a folder with runs, got {reuse}, which is none")
    for item in options.set:
        if (name := item.partition("=")[0].strip()) in ("training.seed", "output", "name"):
            raise RunError(
                f"--set: expected a key that all runs share, got {name}; --seeds and --output choose these"
            )
    for recipe, keys in dict.fromkeys((job.recipe, job.keys) for job in jobs):
        load_task(recipe, keys)
    if other := next(filter(None, (job.other_recipe() for job in jobs)), ""):
        raise RunError(other)


def _write(key: str, options: ReproduceOptions, folder: Path, reasons: Mapping[str, str]) -> TableRecord:
    """Writes the record of all runs that the folder has, whoever made them."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".table.lock"):
        before = _check_record(key, options, record_file(folder))
        record = _record(key, options, folder, reasons, before)
        content = record.model_dump_json(indent=1, exclude_defaults=True)  # a line a cell
        write_atomically(record_file(folder), f"{content}\n".encode())
    return record


def _check_record(key: str, options: ReproduceOptions, file: Path) -> TableRecord | None:
    """The folder's record, if it has one that can be read; refuses runs of another table, size or recipes."""
    try:
        record = read_record(file)
    except FileNotFoundError:
        return None
    except ValueError:
        note(f"{file}: expected the record of a table, it cannot be read; it is made again from the runs")
        return None
    had = (record.table, record.size, _without_device(record.set))
    others = had != (key, options.size, _without_device(options.set))
    if others and any(file.parent.rglob(RECIPE)):
        changed = "".join(f" --set {item}" for item in record.set)
        raise RunError(
            f"{file.parent}: expected the folder of {key}, size {options.size}, with the same --set, got that of "
            f"{record.table}, size {record.size}{changed}; use another --output"
        )
    return None if others else record


def _without_device(keys: Iterable[str]) -> list[str]:
    """Keys of a recipe but for the device, which may be another one when a command is repeated."""
    return sorted(key for key in keys if not key.startswith("training.device="))


def _selected(key: str, table: Table, options: ReproduceOptions) -> list[Cell]:
    """The cells that options ask for."""
    if not table.rows:
        if table.not_measured:
            raise RunError(f"{key}: there is nothing to run: {table.not_measured}")
        clone = "in a clone of the project: " * table.command.startswith("python ")
        raise RunError(f"{key}: no runs of recipes make it, it is made by {clone}{table.command}")
    for axis, names, present in (
        ("rows", options.rows, table.rows),
        ("columns", options.columns, table.columns),
    ):
        unknown = [name for name in names if name not in present]
        if unknown:
            raise RunError(f"{key}, --{axis}: expected some of {', '.join(present)}, got {unknown[0]!r}")
    asked = [
        cell
        for cell in table.cells(options.size)
        if (not options.rows or cell.row in options.rows)
        and (not options.columns or cell.column in options.columns)
    ]
    cells = [cell for cell in asked if not cell.without]
    if not cells:
        reasons = dict.fromkeys(cell.without for cell in asked)
        raise RunError(
            f"{key}: no cell of these rows and columns is run at size {options.size}: {'; '.join(reasons)}"
        )
    runs = {cell.run: cell for cell in table.cells(options.size) if not cell.without}
    return list(_with_starts(cells, runs))


def _with_starts(cells: Iterable[Cell], runs: Mapping[str, Cell]) -> Iterator[Cell]:
    """Cells, each after that of the run which its run starts from."""
    for cell in cells:
        if cell.after:
            yield from _with_starts([runs[cell.after]], runs)
        yield cell


def _jobs(cells: Sequence[Cell], options: ReproduceOptions, folder: Path) -> Iterator[_Job]:
    """Seed by seed, so that an early end leaves whole tables; ``cells`` has each after the one that it starts from."""
    by_run = {cell.run: cell for cell in cells}
    for seed in range(options.seeds):
        yield from _with_seed(by_run, seed, options, folder).values()


def _with_seed(
    by_run: Mapping[str, Cell], seed: int, options: ReproduceOptions, folder: Path
) -> dict[str, _Job]:
    """The runs of one seed by their names."""
    jobs: dict[str, _Job] = {}
    for name, cell in by_run.items():
        run, keys = folder / name / f"seed-{seed}", (*cell.keys, *options.set)
        jobs[name] = _Job(name, seed, run, cell.recipe, keys, cell.agreement, jobs.get(cell.after))
    return jobs


def _existing(key: str, options: ReproduceOptions, folder: Path) -> list[_Job]:
    """The runs of a table that the folder has, begun or diverged, seed by seed."""
    by_run = {cell.run: cell for cell in find_table(key).cells(options.size) if not cell.without}
    names = (path.name for run in by_run for path in (folder / run).glob("seed-*"))
    seeds = sorted({int(name[5:]) for name in names if re.fullmatch(r"seed-(0|[1-9][0-9]*)", name)})
    jobs = (job for seed in seeds for job in _with_seed(by_run, seed, options, folder).values())
    return [job for job in jobs if job.is_begun or job.has_diverged]


def _finished_runs(folder: Path) -> dict[str, Path]:
    """Finished runs in subfolders, by their recipes; hidden folders are copies that were interrupted."""
    finished: dict[str, Path] = {}
    for file in folder.rglob(RESULTS):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        recipe = None if hidden else _read_recipe(file.with_name(RECIPE))
        if recipe is not None:
            finished[recipe] = file.parent
    return finished


def _read_recipe(file: Path) -> str | None:
    try:
        return _without_name(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError):
        return None


def _without_name(recipe: str) -> str:
    """A recipe's keys but for the name and the folder of its run."""
    keys = yaml.load(recipe, LOADER).items()
    return json.dumps([item for item in keys if item[0] not in ("name", "output")], default=str)


def _copy(source: Path, folder: Path, recipe: str) -> None:
    """Copies a finished run without the runs inside it and what was measured with them."""

    def left(directory: str, names: list[str]) -> list[str]:
        inside = (CHECKPOINTS, AGREEMENT, DIVERGED, ".lock")
        return [name for name in names if name in inside or (Path(directory, name) / RECIPE).exists()]

    whole = folder.with_name(f".{folder.name}.copy")
    shutil.rmtree(whole, ignore_errors=True)
    shutil.copytree(source, whole, ignore=left)
    write_atomically(whole / RECIPE, recipe.encode())
    whole.rename(folder)


def _finish(job: _Job, others: Mapping[str, Path], *, quiet: bool) -> bool:
    """Trains and measures a run; whether it did. ``Timeout`` if another process is at it or at its start."""
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(job.folder.with_name(f".{job.folder.name}.lock"), timeout=0):
        begun = job.is_begun
        if begun and (other := job.other_recipe()):
            raise RunError(other)
        if job.has_diverged:
            return False
        task = job.task()
        recipe = kept_recipe(task.recipe, job.folder).dump()
        copied = others.get(_without_name(recipe))
        if not job.folder.exists() and copied is not None and _results(copied) is not None:
            note(f"{job.name}, seed {job.seed}: copied from {copied}")
            _copy(copied, job.folder, recipe)
            begun = True
        measured = begun and _results(job.folder) is not None
        if measured:
            shutil.rmtree(job.folder / CHECKPOINTS, ignore_errors=True)
            if job.is_whole:
                return False
        else:
            _check_start(job)
            try:
                train(task, job.folder, resume=begun, quiet=quiet)
            except NonFiniteError as error:
                write_atomically(job.folder / DIVERGED, f"{error}\n".encode())
                note(f"{job.name}, seed {job.seed}, diverged: {error}")
                return True
            evaluate(task, job.folder)
            shutil.rmtree(job.folder / CHECKPOINTS, ignore_errors=True)
        if job.agreement:
            _agree(job, others, quiet=quiet)
        return True


def _check_start(job: _Job) -> None:
    """``Timeout`` while another process trains what the run starts from, ``RunError`` where its network was removed."""
    if job.start is None or (job.start.folder / MODEL).is_dir():
        return
    if not (job.start.folder / RESULTS).exists():
        raise Timeout(str(job.start.folder))
    raise RunError(
        f"{job.start.folder}: expected its network, from which {job.name} starts, in {MODEL}, got none; delete this "
        "folder and repeat the command, which trains it again"
    )


def _agree(job: _Job, others: Mapping[str, Path], *, quiet: bool) -> None:
    """Trains the runs that a run's agreement is measured with, in its folder, and measures it, unless one diverges."""
    folders: dict[str, Any] = {name: job.folder / name for name in job.agreement}
    for name, changed in job.agreement.items():
        seed, keys = job.seed + OTHER_SEED * (name == "second"), (*job.keys, *changed)
        _finish(replace(job, seed=seed, folder=folders[name], keys=keys, agreement={}), others, quiet=quiet)
    for name, other in folders.items():
        if (other / DIVERGED).exists():
            content = f"{name}: {(other / DIVERGED).read_text('utf-8')}"
            write_atomically(job.folder / DIVERGED, content.encode())
            return
    measured = measure_agreement(job.folder, **folders, quiet=quiet)
    write_atomically(job.folder / AGREEMENT, (measured.model_dump_json(indent=1) + "\n").encode())


def _figure(cell: Cell, results: Any, folder: Path) -> float | None:
    """The figure of a cell, of a run's results or of its record of agreement."""
    section, _, name = cell.measure.partition(".")
    if section != "agreement" or not name:  # an experiment has a score of that name
        return figure(results, cell.measure, cell.model, cell.data)
    agreement = _agreement(folder)
    return None if agreement is None else agreement.value(name)


def _agreement(folder: Path) -> Agreement | None:
    """The agreement of a run; None where there is none that can be read: it is measured again."""
    try:
        return Agreement.model_validate_json((folder / AGREEMENT).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _results(folder: Path) -> Any:
    """Results of a run; None where there are none of all its data that can be read: it is measured again."""
    try:
        results = load_results(folder) if (folder / RESULTS).exists() else None
    except ResultsFileError:
        return None
    return None if results is None or results.run.restricted else results


def _record(
    key: str, options: ReproduceOptions, folder: Path, reasons: Mapping[str, str], before: TableRecord | None
) -> TableRecord:
    """What the runs of a folder come to; cells that are still without a number keep the reason of the record before."""
    cells: dict[str, dict[str, CellRecord]] = {}
    jobs = [job for job in _existing(key, options, folder) if not job.other_recipe()]
    measured = {job: _results(job.folder) for job in jobs}
    results = {job: of_run for job, of_run in measured.items() if of_run is not None}
    for cell in find_table(key).cells(options.size):
        of_cell = () if cell.without else [job for job in jobs if job.name == cell.run]
        figures = {job: _figure(cell, results[job], job.folder) for job in of_cell if job in results}
        values = {
            str(job.seed): round(value * cell.scale, 4) for job, value in figures.items() if value is not None
        }
        had = before.cells.get(cell.row, {}).get(cell.column) if before else None
        reason = cell.without or reasons.get(cell.run, had.reason if had else "")
        reason = "" if values else reason
        diverged = tuple(str(job.seed) for job in of_cell if job.has_diverged and str(job.seed) not in values)
        if values or reason or diverged:
            record = CellRecord(
                values=values, reason=reason, recipe=cell.recipe, keys=cell.keys, diverged=diverged
            )
            cells.setdefault(cell.row, {})[cell.column] = record
    runs = [of_run.run for of_run in results.values()]
    minutes = grouped((job.name, of_run.run.seconds / 60) for job, of_run in results.items())
    versions = grouped(item for run in runs for item in run.versions.items())
    return TableRecord(
        table=key,
        size=options.size,
        set=tuple(options.set),
        cells=cells,
        minutes={name: round(statistics.fmean(values), 1) for name, values in minutes.items()},
        versions={name: ", ".join(dict.fromkeys(values)) for name, values in versions.items()},
        device="; ".join(dict.fromkeys(run.device for run in runs)),
    )
