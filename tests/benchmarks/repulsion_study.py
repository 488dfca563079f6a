"""What repulsion does to heads and to accuracy, over seeds: the self-attentive sentence classifier, and a Transformer.

    PROBATTN_DATA=/data python tests/benchmarks/repulsion_study.py runs/repulsion --seeds 5

Trained for every seed and subject (a network and its data): the network as it is, and with each method. The two with
noise have a temperature, which is chosen first for each subject: of `--temperatures` the one with the least validation
loss after training, a mean over `--tuning-seeds` seeds that are none of those measured. Test data have no part in that.

Networks or their training are smaller than the recipes' (`SUBJECTS`); `--full` takes the recipes as they are. A run
that is finished is not run again and one that was interrupted is resumed, so the study can be stopped at any time;
with `--finished` it trains nothing. It writes docs/data/repulsion.json, and with `--add` leaves there what is of other
subjects or methods:

    python tests/benchmarks/repulsion_study.py runs/repulsion --add --subjects trec,sst2 --methods spos,sgld --seeds 5
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import torch
import typer
from paired_runs import differences, means, ratio

from probattn.data import TextDataset
from probattn.inference.report import site_heads
from probattn.models import head_redundancy, inspect
from probattn.models.hosts.projections import head_lengths
from probattn.recipes import load_recipe
from probattn.tasks import Classification, Network, load_network, train
from probattn.tasks.run import package_versions
from probattn.tasks.task import RECIPE

PLAIN = "plain"


@dataclass(frozen=True)
class Subject:
    """What is trained.

    Attributes:
        recipe: its name.
        reduced: keys that make it small enough for two CPU cores.
        without: methods that are another one here.
    """

    recipe: str
    reduced: tuple[str, ...]
    without: tuple[str, ...] = ()


SMALL_CLASSIFIER = (
    "network.config={hidden_size: 64, attention_size: 64, num_attention_heads: 30, classifier_size: 200}",
)
SUBJECTS: Mapping[str, Subject] = MappingProxyType(
    {
        "trec": Subject("trec_self_attentive", SMALL_CLASSIFIER),
        "sst2": Subject("sst2_self_attentive", (*SMALL_CLASSIFIER, "training.epochs=2")),
        "sst2_transformer": Subject(
            "sentiment_repulsive",
            (
                "data.limits={train: 3200, shifted: 2, out_of_domain: 2}",
                "training.epochs=null",
                "training.steps=200",
                "training.batch_size=16",
            ),
            without=("svgd_strong",),
        ),
    }
)
"""By the name that results go by: the first two are the self-attentive classifier, the last is MiniLM."""

METHODS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        PLAIN: ("repulsion=null",),
        "svgd": ("repulsion.sampler=svgd",),
        "svgd_strong": ("repulsion.sampler=svgd", "repulsion.weight=0.01"),
        "spos": ("repulsion.sampler=spos",),
        "sgld": ("repulsion.sampler=sgld",),
        "svgd_normal": ("repulsion.sampler=svgd", "repulsion.prior=1.0"),
        "frobenius": ("repulsion=null", "disagreement={method: frobenius, weight: 1.0}"),
    }
)
"""Keys of the recipe that each method changes; the first is what all are compared with.

The weight of `svgd_strong` is the paper's, which MiniLM's recipe has.
"""

NOISY = ("spos", "sgld")
"""Methods whose temperature is chosen on validation data."""

TUNING_SEED = 100
"""The first seed for that; those of the measured runs are below."""

MASKED = (PLAIN, "svgd")
"""Methods whose first seed is measured without each of its heads, too, and that can have more seeds."""

MASKED_TEXTS = 300
"""Test texts for that."""

MEASURED = "measured.json"
"""What a finished run's folder holds."""

VALIDATED = "validated.json"
"""What the folder of a finished run for the choice of a temperature holds."""

MEASURES = ("accuracy", "distance", "relative_distance", "overlap", "cosine", "norm")
OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "data" / "repulsion.json"

Run = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One network to train and measure.

    Attributes:
        subject: one of :data:`SUBJECTS`.
        method: one of :data:`METHODS`.
        seed: of the run.
        temperature: of the noise, for :data:`NOISY`.
    """

    subject: str
    method: str
    seed: int
    temperature: float | None = None

    @property
    def folder(self) -> str:
        """Where it lies in the study's folder."""
        noise = "" if self.temperature is None else f"temperature-{self.temperature:g}/"
        return f"{self.subject}/{self.method}/{noise}seed-{self.seed}"

    @property
    def overrides(self) -> list[str]:
        """Keys of the recipe that it changes."""
        noise = [] if self.temperature is None else [f"repulsion.temperature={self.temperature:g}"]
        return [*METHODS[self.method], *noise, f"training.seed={self.seed}", "report.baseline=false"]


@dataclass(frozen=True)
class Study:
    """Where runs lie and how they are made.

    Attributes:
        folder: of the runs.
        overrides: keys of the recipe, by subject.
        finished: whether nothing is trained, and what is not finished is left out.
    """

    folder: Path
    overrides: Mapping[str, Sequence[str]]
    finished: bool = False

    def run(self, job: Job) -> Run | None:
        """See :func:`run_one`."""
        if self.finished and not (self.folder / job.folder / MEASURED).exists():
            return None
        return run_one(job, SUBJECTS[job.subject].recipe, self.overrides[job.subject], self.folder)

    def choose(
        self, subject: str, method: str, temperatures: Sequence[float], seeds: int
    ) -> dict[str, Any] | None:
        """Validation loss and accuracy by temperature, means over seeds, and the temperature of the least loss."""
        candidates = []
        for temperature in temperatures:
            tried = [Job(subject, method, TUNING_SEED + number, temperature) for number in range(seeds)]
            found = [self._validated(job) for job in tried]
            if None in found:
                return None
            means = {
                f"validation_{key}": statistics.fmean(one[key] for one in found if one is not None)
                for key in ("loss", "accuracy")
            }
            candidates.append({"temperature": temperature, "seeds": [job.seed for job in tried]} | means)
        best = min(candidates, key=lambda one: float(one["validation_loss"]))
        return {"temperature": best["temperature"], "candidates": candidates}

    def _validated(self, job: Job) -> dict[str, float] | None:
        """Trains one network for its validation loss alone, or reads what is there."""
        place = self.folder / job.folder
        file = place / VALIDATED
        if file.exists():
            found: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
            return found
        if self.finished:
            return None
        recipe = load_recipe(SUBJECTS[job.subject].recipe, [*job.overrides, *self.overrides[job.subject]])
        result = train(Classification(recipe), place, resume=(place / RECIPE).exists(), quiet=True)["model"]
        assert result.validation is not None
        found = {key: float(result.validation[key]) for key in ("loss", "accuracy")}
        file.write_text(json.dumps(found) + "\n", encoding="utf-8")
        typer.echo(
            f"{job.folder}: " + ", ".join(f"validation {key} {value:.4f}" for key, value in found.items())
        )
        return found


def jobs(
    seeds: int,
    subjects: Sequence[str],
    methods: Sequence[str],
    more: int = 0,
    chosen: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> list[Job]:
    """What is to be done, seed by seed, so that every method has as many as the others when the study is stopped.

    Args:
        seeds: of every method.
        subjects: what is trained.
        methods: with which methods.
        more: seeds of the methods in :data:`MASKED` after those.
        chosen: temperatures by subject and method, as :meth:`Study.choose` gives them; the methods in :data:`NOISY`
            that have none are left out.
    """
    first, later = range(seeds), range(seeds, seeds + more)
    kept = [method for method in methods if method in MASKED]
    found = []
    for seed, name, method in (*product(first, subjects, methods), *product(later, subjects, kept)):
        choice = chosen.get(name, {}).get(method)
        if method not in SUBJECTS[name].without and (method not in NOISY or choice is not None):
            found.append(Job(name, method, seed, None if choice is None else choice["temperature"]))
    return found


def run_one(job: Job, recipe_name: str, overrides: Sequence[str], folder: Path) -> Run:
    """Trains and measures one network, or reads what is there."""
    place = folder / job.folder
    file = place / MEASURED
    if file.exists():
        found: Run = json.loads(file.read_text(encoding="utf-8"))
        return found
    recipe = load_recipe(recipe_name, [*job.overrides, *overrides])
    task = Classification(recipe)
    result = train(task, place, resume=(place / RECIPE).exists(), quiet=True)["model"]
    found = asdict(job) | {"steps": result.step, "seconds": round(result.seconds, 1)}
    trained = load_network(place)
    found |= measure(trained, task, task.texts.test)
    if job.seed == 0 and job.method in MASKED:
        found["redundancy"] = redundancy(trained, task, task.texts.test.take(MASKED_TEXTS))
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def measure(trained: Network[Any], task: Classification, data: TextDataset) -> dict[str, float]:
    """Accuracy, and how different the heads are over all texts: means over attention calls; the length of queries."""
    rows = data.rows(data.shortest_first())
    calls = inspect(trained.net)
    captured = trained.captured(task.batches(trained, rows), calls)
    sites = site_heads(captured, trained.key, head_lengths(trained.net, calls))
    found = {
        "distance": [site.distance for site in sites],
        "relative_distance": [site.relative for site in sites],
        "overlap": [site.overlap for site in sites if site.overlap is not None],
        "cosine": [_between(torch.tensor(site.similarity)) for site in sites],
        "norm": [site.lengths["query"] for site in sites],
    }
    return {"accuracy": accuracy(trained, task, rows)} | {
        name: statistics.fmean(values) for name, values in found.items()
    }


def redundancy(trained: Network[Any], task: Classification, data: TextDataset) -> dict[str, Any]:
    """Accuracy on the texts with all heads, and how far it falls without each, call after call."""
    calls = inspect(trained.net)
    found = head_redundancy(trained.net, lambda: accuracy(trained, task, data), calls)
    return {"texts": len(data), "accuracy": found.whole, "drops": [found.drops[call.name] for call in calls]}


def accuracy(trained: Network[Any], task: Classification, data: TextDataset) -> float:
    """Share of the labelled texts that are classified right."""
    right = 0
    for batch in task.batches(trained, data):
        inputs = {name: values.to(trained.device) for name, values in batch.items() if name != "labels"}
        with torch.no_grad():
            right += int((trained.program(inputs).argmax(dim=-1).cpu() == batch["labels"]).sum())
    return right / len(data)


def _between(similarity: torch.Tensor) -> float:
    """The mean over pairs of different heads."""
    heads = len(similarity)
    return float(similarity.sum() - similarity.trace()) / (heads * (heads - 1))


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Means over seeds by subject and method, and differences and ratios to the plain network of the same seed."""
    summary: dict[str, Any] = {}
    for subject, method in dict.fromkeys((run["subject"], run["method"]) for run in runs):
        of_subject = [run for run in runs if run["subject"] == subject]
        plain = {run["seed"]: run for run in of_subject if run["method"] == PLAIN}
        own = [run for run in of_subject if run["method"] == method]
        row = means(own, MEASURES)
        if method != PLAIN and plain:
            row |= {
                "difference": differences(own, plain, MEASURES),
                "relative_distance_ratio": ratio(own, plain, "relative_distance"),
            }
        summary.setdefault(subject, {})[method] = row
    return summary


def write(content: Mapping[str, Any], output: Path) -> None:
    """Writes settings, temperatures, runs in the order of :func:`jobs`, and their summary."""
    subjects, methods = list(SUBJECTS), list(METHODS)
    runs = sorted(
        content["runs"],
        key=lambda run: (run["seed"], subjects.index(run["subject"]), methods.index(run["method"])),
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    written = {**content, "runs": runs, "summary": summarise(runs)}
    output.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def beside(output: Path, subjects: Sequence[str], methods: Sequence[str]) -> dict[str, Any]:
    """What the file holds of other subjects or methods than these; its settings then name these as added.

    Raises:
        typer.BadParameter: it was made with other versions of packages.
    """
    content: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    if content["setting"]["versions"] != package_versions():
        raise typer.BadParameter(
            f"--add: {output} was made with {content['setting']['versions']}, here are {package_versions()}; give "
            "another --output"
        )
    content["runs"] = [
        run for run in content["runs"] if not (run["subject"] in subjects and run["method"] in methods)
    ]
    for name, choices in content.setdefault("temperatures", {}).items():
        if name in subjects:
            content["temperatures"][name] = {key: choices[key] for key in choices if key not in methods}
    added = content["setting"].setdefault("added", [])
    if (own := {"subjects": list(subjects), "methods": list(methods)}) not in added:
        added.append(own)
    return content


def reductions(subject: str, full: bool) -> list[str]:
    """Keys that make a subject small, none of them at full size."""
    return [] if full else list(SUBJECTS[subject].reduced)


def main(
    folder: Annotated[Path, typer.Argument(help="Where the runs go.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 5,
    more: Annotated[int, typer.Option(min=0, help="Further seeds of the network as it is and of SVGD.")] = 0,
    subjects: Annotated[str, typer.Option(help="Subjects, separated by commas.")] = ",".join(SUBJECTS),
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(METHODS),
    output: Annotated[Path, typer.Option(help="The file of results.")] = OUTPUT,
    temperatures: Annotated[
        str, typer.Option(help="Of the methods with noise, to choose from, separated by commas.")
    ] = "1,1e-2,1e-4,1e-6",
    tuning_seeds: Annotated[int, typer.Option(min=1, help="Seeds for that choice.")] = 2,
    *,
    full: Annotated[bool, typer.Option("--full", help="Sizes of the recipes.")] = False,
    finished: Annotated[
        bool, typer.Option("--finished", help="Train nothing; take what is finished.")
    ] = False,
    add: Annotated[bool, typer.Option("--add", help="Leave what the file has of others.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipes.")] = None,
) -> None:
    """Chooses temperatures, runs what is missing, seed by seed, and writes the results after each run."""
    names, kinds = subjects.split(","), methods.split(",")
    for option, given, known in (("subjects", names, SUBJECTS), ("methods", kinds, METHODS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise typer.BadParameter(f"{option}: expected some of {', '.join(known)}, got {unknown[0]!r}")
    overrides = {name: [*reductions(name, full), *(set_ or [])] for name in names}
    study = Study(folder, overrides, finished)
    content = beside(output, names, kinds) if add else {"setting": {}, "temperatures": {}, "runs": []}
    for key, own in (
        ("recipes", {name: SUBJECTS[name].recipe for name in names}),
        ("methods", {name: list(METHODS[name]) for name in kinds}),
        ("overrides", overrides),
        ("versions", package_versions()),
    ):
        content["setting"][key] = content["setting"].get(key, {}) | own
    grid = [float(value) for value in temperatures.split(",")]
    for name, method in product(names, [kind for kind in kinds if kind in NOISY]):
        choice = study.choose(name, method, grid, tuning_seeds)
        if choice is not None:
            content["temperatures"].setdefault(name, {})[method] = choice
    for job in jobs(seeds, names, kinds, more, content["temperatures"]):
        run = study.run(job)
        if run is not None:
            content["runs"].append(run)
            write(content, output)
            said = ", ".join(f"{name} {run[name]:.4f}" for name in MEASURES)
            typer.echo(f"{job.folder}: {said}")


if __name__ == "__main__":
    typer.run(main)
