"""Carries out the runs of a table, each once, and reads the table's numbers from their results."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from probattn.data import DataError
from probattn.files.durable import write_atomically
from probattn.inference.checkpoint import CHECKPOINTS
from probattn.inference.loop import NonFiniteError
from probattn.report import Agreement, ResultsFileError
from probattn.reproduce.declarations import Cell, Table, find_table
from probattn.reproduce.options import ReproduceOptions
from probattn.reproduce.records import CellRecord, TableRecord, figure, read_record, record_file
from probattn.tasks import RunError, load_results, load_task, run_task, train
from probattn.tasks.agreement import AGREEMENT, measure_agreement
from probattn.tasks.devices import current_device
from probattn.tasks.progress import note
from probattn.tasks.run import check_folder, evaluate, kept_recipe, package_versions
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
    agreement: Mapping[str, tuple[str, ...]]
    after: str = ""
    start: Path | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it has all its files."""
        files = (RESULTS, AGREEMENT) if self.agreement else (RESULTS,)
        return self.has_diverged or all((self.folder / file).exists() for file in files)

    @property
    def has_diverged(self) -> bool:
        """Whether its loss was not finite; the file has the message."""
        return (self.folder / DIVERGED).exists()

    def task(self) -> Any:
        """The task of the run; of an experiment, whose runs have seeds of their own, the next so many."""
        recipe = load_task(self.recipe, self.keys).recipe
        keys = [*self.keys, f"training.seed={self.seed * getattr(recipe.training, 'runs', 1)}"]
        if (self.folder / RESULTS).exists():  # which may have been made on another device
            keys.append(f"training.device={run_task(self.folder).recipe.training.device}")
        alone = [ALONE] if hasattr(getattr(recipe, "report", None), "baseline") else []
        return load_task(self.recipe, [*alone, *keys])


def reproduce(
    key: str, options: ReproduceOptions, folder: Path, *, reuse: Path | None = None, quiet: bool = False
) -> tuple[Path, TableRecord]:
    """Trains and measures the missing runs of a table, and writes its record.

    Interrupted runs are continued, finished ones are not repeated; checkpoints of measured runs are deleted. The record
    is updated after each run. A run whose loss is not finite counts as finished: the record has its seed, and the
    message is in ``diverged.txt``; to repeat it, delete its folder. Several processes with the same command share the
    runs.

    Args:
        key: key of the table, such as "babn/table-5".
        options: part and size of the table.
        folder: folder of the runs, ``ROW/seed-N`` or ``ROW/COLUMN/seed-N``, and of ``table.json``.
        reuse: folder with runs of other tables, in subfolders; a finished run with the same recipe, seed and device is
            copied instead of trained again.
        quiet: whether to show no progress bars.

    Returns:
        The file of the record, and the record, with all runs in the folder. Cells whose data are missing, and those
        without a recipe at this size, have the reason.

    Raises:
        RunError: there is no such table, it is not made of runs of recipes, or the folder holds another table or other
            recipes.
    """
    table = find_table(key)
    cells = _selected(key, table, options)
    jobs = list(_jobs(cells, options, folder))
    _check_record(key, options, record_file(folder))
    reasons: dict[str, str] = {}
    others = _finished_runs(reuse) if reuse else {}
    started, trained = time.monotonic(), 0
    for number, job in enumerate(jobs, 1):
        if job.after in reasons:
            reasons.setdefault(job.name, reasons[job.after])
        if job.name in reasons:
            continue
        left = [other for other in jobs[number - 1 :] if not other.is_whole]
        if job in left:
            spent = (time.monotonic() - started) / max(1, trained)
            about = f", about {timedelta(seconds=round(spent * len(left)))} left" if trained else ""
            note(f"run {number} of {len(jobs)}: {job.name}, seed {job.seed}{about}")
        if job.start is not None and (job.start / DIVERGED).exists():
            job.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(
                job.folder / DIVERGED, f"the run from which it starts, {job.start}, diverged\n".encode()
            )
        elif job.start is not None and not (job.start / MODEL).is_dir():
            note(f"{job.folder}: another process is at {job.start}, which it starts from; repeat the command")
            continue
        try:
            trained += _finish(job, others, quiet=quiet)
        except DataError as error:
            reasons[job.name] = str(error)
            note(f"{job.name}: {error}")
        record = _write(key, options, folder, reasons)
    return record_file(folder), record


def _write(key: str, options: ReproduceOptions, folder: Path, reasons: Mapping[str, str]) -> TableRecord:
    """Writes the record of all runs that the folder has, whoever made them."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".table.lock"):
        record = _record(key, options, folder, reasons)
        content = record.model_dump_json(indent=1, exclude_defaults=True)  # a line a cell
        write_atomically(record_file(folder), f"{content}\n".encode())
    return record


def _check_record(key: str, options: ReproduceOptions, file: Path) -> None:
    """Refuses a folder with the record of another table, size or recipes."""
    if not file.exists():
        return
    record = read_record(file)
    had = (record.table, record.size, _without_device(record.set))
    if had != (key, options.size, _without_device(options.set)):
        changed = "".join(f" --set {item}" for item in record.set)
        raise RunError(
            f"{file.parent}: expected the folder of {key}, size {options.size}, with the same --set, got that of "
            f"{record.table}, size {record.size}{changed}; use another --output"
        )


def _without_device(keys: Iterable[str]) -> tuple[str, ...]:
    """Keys of a recipe but for the device, which may be another one when a command is repeated."""
    return tuple(key for key in keys if not key.startswith("training.device="))


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
    """Seed by seed, so that an early end leaves whole tables."""
    by_run = {cell.run: cell for cell in cells}
    for seed in range(options.seeds):
        for name, cell in by_run.items():
            of_seed, keys = f"seed-{seed}", (*cell.keys, *options.set)
            start = folder / cell.after / of_seed if cell.after else None
            if start is not None:
                keys += (f"network.name={start / MODEL}",)
            yield _Job(
                name, seed, folder / name / of_seed, cell.recipe, keys, cell.agreement, cell.after, start
            )


def _finished_runs(folder: Path) -> dict[str, Path]:
    """Finished runs in subfolders, by their recipes."""
    recipes = (file.with_name(RECIPE) for file in folder.rglob(RESULTS))
    return {_without_name(file.read_text("utf-8")): file.parent for file in recipes if file.exists()}


def _without_name(recipe: str) -> str:
    """A recipe's text without the name and the folder of its run."""
    return "\n".join(line for line in recipe.splitlines() if not line.startswith(("name:", "output:")))


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
    """Trains and measures a run; whether it did, or another process, another table or an earlier call."""
    if job.has_diverged:
        return False
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(job.folder.with_name(f".{job.folder.name}.lock"), timeout=0):
            task, begun = job.task(), (job.folder / RECIPE).exists()
            if begun:
                check_folder(task, job.folder, resume=True)
            recipe = kept_recipe(task.recipe, job.folder).dump()
            other = others.get(_without_name(recipe))
            if not job.folder.exists() and other is not None and _results(other) is not None:
                note(f"{job.name}, seed {job.seed}: copied from {other}")
                _copy(other, job.folder, recipe)
                begun = True
            measured = begun and _results(job.folder) is not None
            if measured and job.is_whole:
                return False
            if not measured:
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
    except Timeout:
        note(f"{job.folder}: another process is at it; the same command has its figures when that is done")
        return False


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
    file = folder / AGREEMENT
    return Agreement.model_validate_json(file.read_text("utf-8")).value(name) if file.exists() else None


def _results(folder: Path) -> Any:
    """Results of a run; None where there are none, or none that can be read, which are measured again."""
    try:
        return load_results(folder)
    except (FileNotFoundError, ResultsFileError):
        return None


def _record(key: str, options: ReproduceOptions, folder: Path, reasons: Mapping[str, str]) -> TableRecord:
    """What the runs of a folder come to."""
    cells: dict[str, dict[str, CellRecord]] = {}
    minutes: dict[str, float] = {}
    runs: dict[str, dict[str, Any]] = {}
    for cell in find_table(key).cells(options.size):
        if cell.run not in runs:
            folders = sorted((folder / cell.run).glob("seed-*"), key=lambda path: len(path.name))
            by_seed = {path.name.removeprefix("seed-"): _results(path) for path in folders}
            runs[cell.run] = {seed: results for seed, results in by_seed.items() if results is not None}
            spent = [results.run.seconds / 60 for results in runs[cell.run].values()]
            minutes |= {cell.run: round(sum(spent) / len(spent), 1)} if spent else {}
        taken = {} if cell.without else runs[cell.run]
        figures = {
            seed: _figure(cell, results, folder / cell.run / f"seed-{seed}")
            for seed, results in taken.items()
        }
        values = {seed: round(value * cell.scale, 4) for seed, value in figures.items() if value is not None}
        reason = "" if values else cell.without or reasons.get(cell.run, "")
        ended = () if cell.without else (folder / cell.run).glob(f"seed-*/{DIVERGED}")
        seeds = {file.parent.name.removeprefix("seed-") for file in ended} - values.keys()
        diverged = tuple(sorted(seeds, key=int))
        if values or reason or diverged:
            record = CellRecord(
                values=values, reason=reason, recipe=cell.recipe, keys=cell.keys, diverged=diverged
            )
            cells.setdefault(cell.row, {})[cell.column] = record
    return TableRecord(
        table=key,
        size=options.size,
        set=tuple(options.set),
        cells=cells,
        minutes=minutes,
        versions=package_versions(),
        device=str(current_device()),
    )
