"""Training, predicting and comparing recipes over seeds; what is finished is not done again."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic import TypeAdapter
from safetensors.torch import load_file
from torch import Tensor

from probattn.comparison import variants as predicting
from probattn.comparison.options import CompareOptions
from probattn.comparison.page import page
from probattn.comparison.variants import MEASURES, ComparisonResults, Interval, Row, Variants
from probattn.comparison.workers import BUSY, end_with_parent, workers
from probattn.files.durable import digest, write_atomically, write_tensors
from probattn.files.json_files import JSONError, read_json
from probattn.inference.checkpoint import CHECKPOINTS
from probattn.metrics.functional import holm, mean_interval
from probattn.report import Comparison
from probattn.report.bootstrap import seeds_p
from probattn.tasks import RunError, load_network, load_task, train
from probattn.tasks.classification.task import Classification, classification_of
from probattn.tasks.devices import current_device
from probattn.tasks.progress import note
from probattn.tasks.run import check_folder, package_versions
from probattn.tasks.task import MODEL, RECIPE

FIGURES, POINTS = "compared.json", "compared.safetensors"
"""Figures of a run, and its predictions in one pass, in its folder."""
_FIGURES = TypeAdapter(dict[str, Any])
_Values = dict[tuple[str, str], dict[int, dict[str, float]]]


@dataclass(frozen=True)
class _Job:
    recipe: str
    seed: int
    folder: Path
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        return Path(self.recipe).stem

    def task(self) -> Classification:
        """The task of its recipe."""
        classification_of(load_task(self.recipe), self.recipe)
        return classification_of(load_task(self.recipe, self.keys), self.recipe)

    @property
    def is_done(self) -> bool:
        return (self.folder / FIGURES).exists()


def compare(options: CompareOptions, folder: Path, *, quiet: bool = False) -> tuple[Path, ComparisonResults]:
    """Trains the missing runs, predicts by every prediction method, and writes the comparison.

    Interrupted runs are continued; of finished runs the network is kept, and the checkpoints are deleted. Several
    processes, started by ``workers`` or by hand with the same command, share the runs.

    Args:
        options: options of the comparison.
        folder: folder of the runs, ``RECIPE/seed-N``, and of ``comparison.json`` and ``comparison.html``.
        quiet: whether to show no progress bars.

    Returns:
        Path of the page, and the records.

    Raises:
        DataError: the data are not as a recipe describes.
        RunError: a recipe is not one of texts, runs differ in their data, or another process still trains one.
    """
    end_with_parent()
    if (folder / RECIPE).exists():
        raise RunError(f"{folder}: expected a folder for several runs, got that of one; use another --output")
    jobs = list(_jobs(options, folder))
    tasks = {job.name: job.task() for job in jobs if job.seed == 0}  # refused before anything is trained
    if options.workers > 1 and not all(job.is_done for job in jobs):
        _spread(options, folder)
    for number, job in enumerate(jobs, 1):
        _finish(job, options.error, f"run {number} of {len(jobs)}: ", quiet=quiet)
    waiting = [str(job.folder) for job in jobs if not job.is_done]
    if waiting:
        raise RunError(f"{waiting[0]}: {BUSY}; the same command compares when that is done")
    results = _results(options, folder, jobs, tasks)
    write_atomically(folder / "comparison.json", (results.model_dump_json(indent=1) + "\n").encode())
    file = folder / "comparison.html"
    write_atomically(file, page(results).encode())
    return file, results


def _jobs(options: CompareOptions, folder: Path) -> Iterator[_Job]:
    """Seed by seed, so that an early end leaves whole comparisons."""
    for seed in range(options.seeds):
        for recipe in options.recipes:
            keys = (*options.set, "report.baseline=false", f"training.seed={seed}")
            yield _Job(recipe, seed, folder / Path(recipe).stem / f"seed-{seed}", keys)


def _spread(options: CompareOptions, folder: Path) -> None:
    """Shares the runs among processes; each takes what no other is at."""
    command = [sys.executable, "-m", "probattn", "compare", *options.recipes]
    command += ["--output", str(folder), "--quiet"]
    command += [f"--seeds={options.seeds}", f"--error={options.error}", f"--against={options.against}"]
    command += [f"--set={item}" for item in options.set]
    device = current_device()
    if device.type == "cpu":
        command.append("--device=cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with workers(command, options.workers - 1, device, folder):
            for job in _jobs(options, folder):
                _finish(job, options.error, "", quiet=True)
    finally:
        torch.set_num_threads(threads)


def _finish(job: _Job, error: float, prefix: str, *, quiet: bool) -> None:
    """Trains and measures a run, unless that is done or another process is at it."""
    if job.is_done:
        return
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(job.folder.with_name(f".{job.folder.name}.lock"), timeout=0):
            if job.is_done:
                return
            note(f"{prefix}{job.name}, seed {job.seed}")
            task = job.task()
            if (job.folder / MODEL).exists() and not (job.folder / CHECKPOINTS).exists():  # measured once
                check_folder(task, job.folder, resume=True)
            else:
                train(task, job.folder, resume=(job.folder / RECIPE).exists(), quiet=quiet)
            _measure(job, task, error)
            shutil.rmtree(job.folder / CHECKPOINTS, ignore_errors=True)  # three times the size of the network
    except Timeout:
        note(f"{job.folder}: {BUSY}")


def _recipe_digest(task: Classification) -> str:
    """What the figures of a run depend on; its device, which workers name, is not among it."""
    recipe = task.recipe.resolved()
    training = recipe.training.model_copy(update={"device": "auto"})
    return digest([recipe.model_copy(update={"name": "", "output": "", "training": training}).dump()])


def _measure(job: _Job, task: Classification, error: float) -> None:
    variants = predicting.all_variants(task, load_network(job.folder))
    points = {
        f"point.{role}": probability.float() for role, probability in variants.probabilities["point"].items()
    }
    labels = {f"labels.{role}": label for role, label in variants.labels.items()}
    write_tensors(job.folder / POINTS, points | labels)
    content = {"error": error, "recipe": _recipe_digest(task), "figures": variants.measured(error)}
    content["data"] = task.data.fingerprint
    sizes = {role: len(probability) for role, probability in variants.probabilities["point"].items()}
    content["sizes"] = {"train": len(task.texts.train)} | sizes
    write_atomically(job.folder / FIGURES, _FIGURES.dump_json(content))


def _results(
    options: CompareOptions, folder: Path, jobs: Sequence[_Job], tasks: Mapping[str, Classification]
) -> ComparisonResults:
    values, sizes = _values(jobs, options, tasks)
    reference = (Path(options.recipes[0]).stem, options.against)
    if reference not in values:
        choices = ", ".join(variant for recipe, variant in values if recipe == reference[0])
        raise RunError(f"--against {options.against}: expected a way of {reference[0]} ({choices})")
    costs = predicting.measured_costs(
        folder,
        {job.name: (tasks[job.name], job.folder) for job in jobs if job.seed == 0},
        {name: [variant for recipe, variant in values if recipe == name] for name in tasks},
        [_recipe_digest(task) for task in tasks.values()],
    )
    gaps = _gaps(values, reference)
    rows = []
    for name in tasks:
        for key, figures in values.items():
            if key[0] == name:
                cost = costs[name][predicting.passes_of(key[1])]
                rows.append(_row(key, figures, cost, gaps.get(key, {})))
        if options.seeds > 1:
            cost = costs[name]["point"].times(options.seeds)
            rows += [
                _row((name, variant), {0: figures}, cost, {})
                for variant, figures in _ensemble(name, jobs, options.error).items()
            ]
    first = next(iter(tasks.values()))
    return ComparisonResults(
        error=options.error,
        reference=reference,
        methods={name: task.method_words() for name, task in tasks.items()},
        data=str(first.words()["data"]),
        sizes=sizes,
        seeds=tuple(range(options.seeds)),
        set=tuple(options.set),
        versions=package_versions(),
        rows=tuple(rows),
    )


def _values(
    jobs: Sequence[_Job], options: CompareOptions, tasks: Mapping[str, Classification]
) -> tuple[_Values, Mapping[str, int]]:
    """Figures of all runs by recipe, variant and seed, and the sizes of their data."""
    values: _Values = {}
    read: dict[str, Any] = {}
    labels: Tensor | None = None
    for job in jobs:
        read = _read(job, options.error)
        if read["data"] != tasks[job.name].data.fingerprint:
            raise RunError(
                f"{job.folder}: expected a run on the data of {job.recipe}, got one on others; a file has changed "
                "since: remove the folders of the runs, or name another with --output"
            )
        for variant, figures in read["figures"].items():
            values.setdefault((job.name, variant), {})[job.seed] = figures
        test_labels = load_file(job.folder / POINTS)["labels.test"]
        labels = test_labels if labels is None else labels
        if not torch.equal(test_labels, labels):
            raise RunError(
                f"{job.folder}: expected the test data of {jobs[0].folder}, got others; leave data to --set"
            )
    unlike = next((key for key, figures in values.items() if len(figures) != options.seeds), None)
    if unlike is not None:
        raise RunError(
            f"{unlike[0]}: expected {unlike[1]!r} in the figures of every seed, as this version measures it; remove "
            f"the files {FIGURES}, and the same command makes them anew"
        )
    return values, read["sizes"]


def _read(job: _Job, error: float) -> dict[str, Any]:
    """The figures of a run, of the recipe and the error that are asked for."""
    file, again = job.folder / FIGURES, "remove it, and the same command makes it anew"
    try:
        read = read_json(file, _FIGURES)
    except JSONError as problem:
        raise RunError(f"{problem}; {again}") from problem
    if read["error"] != error:
        raise RunError(f"{file}: expected figures at an error of {error}, got {read['error']}; {again}")
    if not {"recipe", "data"} <= read.keys():
        raise RunError(
            f"{file}: expected figures of this version of probattn, got those of an earlier one; {again}"
        )
    if read["recipe"] != _recipe_digest(job.task()):
        raise RunError(
            f"{job.folder}: expected a run of this recipe, got one of another; remove the folder, or name another "
            "with --output"
        )
    return read


def _row(
    key: tuple[str, str],
    by_seed: Mapping[int, Mapping[str, float]],
    cost: Interval,
    gaps: Mapping[str, Comparison],
) -> Row:
    def over_seeds(measure: str) -> Interval:
        return Interval.over(item[measure] for item in by_seed.values())

    measures = [name for name in MEASURES if all(name in item for item in by_seed.values())]
    return Row(
        recipe=key[0],
        variant=key[1],
        cost=cost,
        closed_form=over_seeds("closed_form").mean if "closed_form" in next(iter(by_seed.values())) else None,
        values={name: over_seeds(name) for name in measures},
        gaps=gaps,
    )


def _ensemble(name: str, jobs: Sequence[_Job], error: float) -> dict[str, dict[str, float]]:
    """Figures of the mean over the networks of all seeds (Lakshminarayanan et al. 2017), and with a temperature."""
    read = [load_file(job.folder / POINTS) for job in jobs if job.name == name]
    roles = [key.removeprefix("point.") for key in read[0] if key.startswith("point.")]
    variants = Variants({role: read[0][f"labels.{role}"] for role in ("validation", "test")})
    variants.add(
        "ensemble",
        {role: torch.stack([item[f"point.{role}"].double() for item in read]).mean(dim=0) for role in roles},
    )
    variants.scaled("ensemble", "ensemble_temperature")
    return variants.measured(error)


def _gaps(values: _Values, reference: tuple[str, str]) -> dict[tuple[str, str], dict[str, Comparison]]:
    """Differences to the reference, paired by seed; p values are corrected by Holm's method over all of a measure."""
    gaps: dict[tuple[str, str], dict[str, Comparison]] = {}
    base = values[reference]
    for measure in MEASURES if len(base) > 1 else ():
        samples = {
            key: tuple(by_seed[seed][measure] - base[seed][measure] for seed in base)
            for key, by_seed in values.items()
            if key != reference and all(measure in run for runs in (by_seed, base) for run in runs.values())
        }
        p_values = [seeds_p(sample) for sample in samples.values()]
        for (key, sample), p, adjusted in zip(samples.items(), p_values, holm(p_values), strict=True):
            mean, low, high, _ = mean_interval(sample)
            assert low is not None
            assert high is not None
            gaps.setdefault(key, {})[measure] = Comparison(
                model=key[1], value=mean, low=low, high=high, p=p, corrected=adjusted, seeds=sample
            )
    return gaps
