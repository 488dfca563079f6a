"""Training, evaluating and reporting a run of any task."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any

from accelerate import PartialState

from probattn.files.durable import write_atomically
from probattn.inference.checkpoint import flatten
from probattn.inference.configuration import LOGGER, log_latent
from probattn.inference.records import read_records
from probattn.inference.run import FitResult
from probattn.report import RunDescription, read_results, write_results
from probattn.tasks.errors import RecipeError, RunError, as_run_error
from probattn.tasks.sections.keys import load
from probattn.tasks.task import BASELINE, RECIPE, RECORDS, REPORT, RESULTS, SEEDS, Task

AnyTask = Task[Any, Any]
Runs = Sequence[tuple[Path, AnyTask]]
"""Folders of runs with their tasks."""

PACKAGES = ("probattn", "torch", "pyro-ppl", "transformers", "accelerate", "torchmetrics")
FREE = ("name", "output", "training.seed", "prediction.seed")
"""Keys in which runs that are compared over their seeds may differ."""


class Processes:
    """The processes of a launcher (torchrun, accelerate launch), or the single one there usually is."""

    def __init__(self, *, cpu: bool) -> None:
        self._state = PartialState(cpu=cpu) if launched() else None

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self._state is None or self._state.is_main_process

    @contextmanager
    def first_writes(self) -> Iterator[bool]:
        """Yields whether to write; the others wait before and after the block."""
        self._wait()
        yield self.is_first
        self._wait()

    def _wait(self) -> None:
        if self._state is not None:
            self._state.wait_for_everyone()


def launched() -> bool:
    """Whether a launcher started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def train(task: AnyTask, folder: Path, *, resume: bool = False, quiet: bool = False) -> dict[str, FitResult]:
    """Trains all parts of a recipe into a folder; of several processes only the first one writes.

    Args:
        task: task with its recipe.
        folder: folder of the run, new unless ``resume``.
        resume: whether to continue an interrupted run; finished parts are not trained again.
        quiet: whether to show no progress bars.

    Returns:
        Results by name: "model" and, if trained, "baseline"; in an experiment, by condition.

    Raises:
        DataError: the data are not as the recipe describes.
        RunError: the folder already holds a run, or none to resume; or the recipe cannot be carried out.
    """
    check_folder(task, folder, resume)
    parts = task.parts(folder)
    processes = Processes(cpu=task.recipe.training.device == "cpu")
    with processes.first_writes() as writes:
        if writes:
            _keep_recipe(task.recipe, folder)
    results: dict[str, FitResult] = {}
    for part in parts:
        with latent_by_recipe():
            results[part.name] = part.fit(resume, quiet)
        with processes.first_writes() as writes:
            if writes:
                _check_recipe_is_there(folder)
                part.save()
    return results


def evaluate(task: AnyTask, run: Path, baseline: Path | None = None) -> Any:
    """Measures a finished run and writes ``metrics.json`` into its folder.

    Args:
        task: task with the run's recipe.
        run: folder of the run.
        baseline: folder of a deterministic run to compare with; None for the one within the run, if any.

    Returns:
        The records, of the class ``task.view.results_class``.

    Raises:
        DataError: the data have changed since training.
        RunError: the folder holds no finished run, or the baseline does not fit.
    """
    if baseline is not None and (baseline / RECIPE).exists():  # the baseline within a run has none
        try:
            read_as(task, baseline / RECIPE)
        except RecipeError as error:
            raise RunError(
                f"{baseline}: expected a baseline of the task of {run}, got a run of another task ({error})"
            ) from error
    results = task.evaluate(run, baseline)
    write_results(results, run / RESULTS)
    return results


def evaluate_runs(runs: Runs, baseline: Path | None = None, *, again: bool) -> tuple[Path, Any]:
    """Evaluates one run, or several runs of one recipe over their seeds.

    Args:
        runs: folders of the runs with their tasks.
        baseline: for a single run, as for :func:`evaluate`.
        again: whether to evaluate runs that have already been evaluated.

    Returns:
        Path of the file with the records, in the folder of the first run, and the records.

    Raises:
        RunError: the runs have different recipes, or two of them the same seed.
    """
    if len(runs) > 1:
        _check_seeds(runs)
        if baseline is not None:
            raise RunError(
                f"--baseline {baseline}: expected one run with it; several are compared with the baselines within them"
            )
    loaded = [
        evaluate(task, run, baseline)
        if again or not (run / RESULTS).exists()
        else read_results(run / RESULTS, task.view.results_class)
        for run, task in runs
    ]
    first, task = runs[0]
    if len(runs) == 1:
        return first / RESULTS, loaded[0]
    path = first.resolve()
    named = {
        Path(os.path.relpath(run.resolve(), path)).as_posix(): results
        for (run, _), results in zip(runs, loaded, strict=True)
    }
    with as_run_error(ValueError, where=f"in {path}"):
        combined = task.view.combine(named)
    kind = task.view.results_class
    if not isinstance(combined, kind):
        raise RunError(
            f"{type(task.view).__name__}.combine: expected {kind.__name__}, got {type(combined).__name__}; write a "
            "combine that returns it, or give no_seeds the reason why there is none"
        )
    return write_results(combined, first / f"{SEEDS}.json"), combined


def read_as(task: AnyTask, file: Path) -> Any:
    """A recipe, read as one of this task."""
    return load(file, (), lambda _: task.recipe_class, {})


def write_page(task: AnyTask, results: Any, file: Path) -> Path:
    """Writes the report atomically and returns the path; after an ``OSError`` an existing file is unchanged."""
    write_atomically(file, task.view.page(results).encode())
    return file


def report(runs: Runs, baseline: Path | None = None, *, again: bool = False) -> tuple[Path, Path, Any]:
    """Writes ``report.html`` of every run, which is evaluated first if necessary, and ``seeds.html`` for several runs.

    Args:
        runs: folders of the runs with their tasks.
        baseline: for a single run, as for :func:`evaluate`.
        again: whether to evaluate runs that have already been evaluated.

    Returns:
        Path of the page, path of the file with its records, and the records.

    Raises:
        RunError: as for :func:`evaluate_runs`.
    """
    anew = again or baseline is not None or any(task.restricted for _, task in runs)
    file, results = evaluate_runs(runs, baseline, again=anew)
    _, task = runs[0]
    if len(runs) == 1:
        return write_page(task, results, file.with_name(REPORT)), file, results
    for run, item in runs:
        write_page(item, read_results(run / RESULTS, item.view.results_class), run / REPORT)
    return write_page(task, results, file.with_suffix(".html")), file, results


def describe(run: Path, recipe: Any, *, num_samples: int = 1, **words: Any) -> RunDescription:
    """Description of a run folder, for its report.

    Args:
        run: the folder.
        recipe: of the run.
        num_samples: posterior draws of a prediction.
        **words: ``method``, ``network``, ``data``, ``train_size`` and ``device`` of
            :class:`probattn.report.RunDescription`, and ``steps`` and ``seconds`` where the records of
            training do not tell them.
    """
    return RunDescription(
        name=recipe.name,
        num_samples=num_samples,
        seed=recipe.training.seed,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=package_versions(),
        recipe=(run / RECIPE).read_text(encoding="utf-8"),
        commands=(
            f"probattn train {quote(str(run / RECIPE))} --output NEW_FOLDER",
            "probattn report NEW_FOLDER",
        ),
        **(spent(run) | words),
    )


def spent(run: Path) -> dict[str, Any]:
    """Steps of a run's network, and seconds of it and its baseline, from their records, also where it resumed."""
    by_network = [read_records(folder / RECORDS) for folder in (run, run / BASELINE)]
    trained = [record for records in by_network for record in records if record.get("kind") == "train"]
    return {
        "steps": int(by_network[0][-1]["step"]) if by_network[0] else 0,
        "seconds": sum(float(record.get("seconds", 0)) for record in trained),
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of what a run's figures depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def check_same_recipe(first: tuple[Path, Any], other: tuple[Path, Any], free: Sequence[str]) -> None:
    """Raises ``RunError`` where two runs differ in another key than the free ones, each written with dots."""
    for difference in _differences(first[1], other[1], free):
        words = f"expected the run {first[0]} again, with {difference}"
        raise RunError(f"{other[0]}: {words}; train it with the same recipe")


def _differences(recipe: Any, other: Any, free: Sequence[str] = ()) -> Iterator[str]:
    """``KEY VALUE, got VALUE`` of every key but the free ones that two recipes have with different values."""
    ours, theirs = (flatten(item.model_dump(mode="json")) for item in (recipe, other))
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key) and not f"{key}.".startswith(tuple(f"{item}." for item in free)):
            yield f"{key} {ours.get(key)!r}, got {theirs.get(key)!r}"


def _check_seeds(runs: Runs) -> None:
    """Makes sure that several runs are those of one recipe, each with another seed."""
    for folder, task in runs:
        if task.view.no_seeds is not None:
            raise RunError(f"{folder}: expected one run, {task.view.no_seeds}")
    seeds: dict[int, Path] = {}
    for folder, task in runs:
        check_same_recipe((runs[0][0], runs[0][1].recipe), (folder, task.recipe), FREE)
        seed = task.recipe.training.seed
        if seed in seeds:
            raise RunError(
                f"{folder}: expected another training.seed than {seed}, which {seeds[seed]} has; runs of one seed "
                "count once"
            )
        seeds[seed] = folder


def check_folder(task: AnyTask, folder: Path, resume: bool, free: Sequence[str] = ()) -> None:
    """Raises ``RunError`` where a new run would write over another, or a resumed one has another recipe."""
    recipe_file = folder / RECIPE
    if resume:
        if not recipe_file.exists():
            raise RunError(f"{folder}: nothing to resume; expected a run folder with {RECIPE}")
        ours, theirs = (kept_recipe(item, folder) for item in (read_as(task, recipe_file), task.recipe))
        for difference in _differences(ours, theirs, free):
            words = f"its recipe differs: expected {difference}"
            raise RunError(f"{folder}: {words}; resume with {recipe_file}, or use another --output")
    elif folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: expected a new folder, it holds files; use another --output, or --resume")


def _keep_recipe(recipe: Any, folder: Path) -> None:
    """Writes the recipe of a run into its folder, which is made; a run that is resumed has it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / RECIPE).exists():
        write_atomically(folder / RECIPE, kept_recipe(recipe, folder).dump().encode())


@contextmanager
def latent_by_recipe() -> Iterator[None]:
    """Leaves out what drivers log of latent variables: a run's recipe says what is latent, or that nothing is."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.funcName != log_latent.__name__

    LOGGER.addFilter(is_other)
    try:
        yield
    finally:
        LOGGER.removeFilter(is_other)


def kept_recipe(recipe: Any, folder: Path) -> Any:
    """A recipe as a run keeps it: paths absolute, and with the folder that the run is in."""
    return recipe.resolved().model_copy(update={"output": str(folder)})


def _check_recipe_is_there(folder: Path) -> None:
    """Makes sure that a run that ends is the run that began."""
    if not (folder / RECIPE).exists():
        raise RunError(
            f"{folder}: expected {RECIPE}, found none; the folder was removed or moved while the run was writing into "
            "it; train it again"
        )
