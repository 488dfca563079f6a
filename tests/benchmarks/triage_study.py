"""Whether promised errors hold, and what they cost in answered inputs, over random draws of recorded predictions.

    PROBATTN_DATA=/data python tests/benchmarks/study.py triage runs/triage

MiniLM is fine-tuned on four tasks. Its predictions of 4,000 or more texts that it was not trained on stand for all
inputs that there are, so that the error at each threshold is known. From them 500 inputs are drawn that say where the
tests of a policy begin, and 2,000 (`--calibrate`) that test the promise, all with replacement: is the error among all
inputs that the policy answers at most the promised one, and how many more would the oracle answer, which knows the
largest threshold whose error is the promised one? Beside them stand the network's predictions of other data: what
the policy answers there, and in how many of random files they are noticed without labels. Both are measured again for
policies that leave inputs far from the training data to a person (`--novelty`). It writes docs/data/triage.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import study
import torch
import typer
from rich.console import Console
from rich.table import Table
from scipy.stats import binom, binomtest
from torch import Tensor

from probattn.data import TextDataset, text_key
from probattn.inference import FeatureDistance
from probattn.inference.last_layer import FITTED
from probattn.metrics.functional import (
    conformal_quantile,
    controlled_threshold,
    ood_auroc,
    risk_coverage_curve,
    sequence_start,
)
from probattn.tasks import load_network
from probattn.triage import Seen, dataset_shift

PILOT = 500
SETTINGS: dict[str, list[str]] = {
    "clinc150": [
        "data.train=clinc150",
        "data.out_of_domain=clinc150_out_of_scope",
        "data.max_length=32",
        "training.epochs=2",
        "training.learning_rate=3e-4",
    ],
    "banking77": [
        "data.train=banking77",
        "data.out_of_domain=clinc150",
        "data.max_length=64",
        "data.limits={train: 6000, out_of_domain: 1000}",
        "training.epochs=3",
        "training.learning_rate=3e-4",
    ],
    "rotten_tomatoes": [
        "data.train=rotten_tomatoes",
        "data.shifted=[imdb, customer_reviews]",
        "data.limits={train: 3000, shifted: 1000}",
        "training.epochs=2",
    ],
    "snli": [
        "data.train=snli",
        "data.shifted=[mnli, sick]",
        "data.max_length=64",
        "data.limits={train: 4000, shifted: 1000}",
        "training.epochs=2",
    ],
}
"""Keys of the recipe by task."""
PROMISES = (0.02, 0.05, 0.1)
NOVELTY = (0.01, 0.05)
"""Shares of inputs of the network's own kind that a policy may leave to a person as far from the training data."""
OWN = "own"
"""Name of the inputs of the network's own kind, among the other data."""
FILES = (30, 100, 300)
"""Inputs of a file that is compared with the held-out ones."""
COMPARED = 300
"""Files of each size."""


@dataclass(frozen=True)
class Population:
    """Predictions that stand for all inputs; ``wrong`` is None where the classes are unknown."""

    scores: Tensor
    labels: Sequence[int]
    wrong: Tensor | None
    distances: Tensor

    def seen(self, rows: Tensor) -> Seen:
        """What a policy keeps of some of them."""
        labels = [str(self.labels[row]) for row in rows.tolist()]
        return Seen.of(self.scores[rows], labels, self.distances[rows])

    def answered(self, threshold: float, limit: float) -> Tensor:
        """Whether each is answered."""
        return (self.scores <= threshold) & (self.distances < limit)


def oracle(scores: Tensor, wrong: Tensor, error: float) -> float:
    """The largest share of all inputs, the most confident first, whose error is at most the promised one."""
    curve = risk_coverage_curve(scores, wrong.double())
    kept = curve.coverage[curve.risk <= error]
    return float(kept.max()) if len(kept) else 0.0


def certain(scores: Tensor, wrong: Tensor, error: float, confidence: float, size: int) -> float:
    """The largest share at which calibration inputs with just the errors to be expected pass the exact test."""
    curve = risk_coverage_curve(scores, wrong.double())
    answered = (size * curve.coverage.double()).round().clamp_min(1)
    passed = (
        binom.cdf((answered * curve.risk.double()).round().numpy(), answered.numpy(), error) <= 1 - confidence
    )
    kept = curve.coverage[torch.from_numpy(passed)]
    return float(kept.max()) if len(kept) else 0.0


def drawn(
    own: Population, error: float, confidence: float, size: int, seed: int, novelty: float | None = None
) -> tuple[float, float, tuple[float, float]]:
    """Of one draw of calibration inputs: the share of all inputs that are answered, the error, and the two limits."""
    scores, wrong, far = own.scores, own.wrong, own.distances
    assert wrong is not None
    rows = torch.randint(len(scores), (PILOT + size,), generator=torch.Generator().manual_seed(seed))
    pilot, held = rows[:PILOT], rows[PILOT:]
    limit = math.inf if novelty is None else conformal_quantile(far[held], error=novelty)
    pilot, held = pilot[far[pilot] < limit], held[far[held] < limit]
    start = sequence_start(scores[pilot], wrong[pilot], error=error)
    found = controlled_threshold(scores[held], wrong[held], error=error, confidence=confidence, start=start)
    answered = own.answered(found.threshold, limit)
    mistakes = float(wrong[answered].double().mean()) if answered.any() else 0.0
    return float(answered.double().mean()), mistakes, (found.threshold, limit)


def elsewhere(other: Population, limits: Sequence[tuple[float, float]]) -> study.Content:
    """Means over policies: the share of other data that they answer, and the error among all that they answer."""
    kept = [other.answered(*each) for each in limits]
    answers = sum(int(each.sum()) for each in kept)
    error = None
    if other.wrong is not None and answers:
        wrong = other.wrong
        error = sum(int((each & wrong).sum()) for each in kept) / answers
    return {"answered": answers / len(other.scores) / len(limits), "error": error}


def noticed(own: Population, other: Population, size: int) -> tuple[study.Content, study.Content]:
    """By number of inputs, in how many of :data:`COMPARED` files they are called unlike the held-out inputs.

    First without distances, then where they are compared too.
    """
    found: tuple[study.Content, study.Content] = {}, {}
    for number in FILES:
        told = [0, 0]
        for seed in range(COMPARED):
            generator = torch.Generator().manual_seed(seed)
            held = torch.randint(len(own.scores), (size,), generator=generator)
            new = torch.randint(len(other.scores), (number,), generator=generator)
            shift = dataset_shift(other.seen(new), own.seen(held))
            assert shift is not None
            plain = shift.model_copy(update={"distance": None, "distance_p": None})
            told = [count + bool(each.differences) for count, each in zip(told, (plain, shift), strict=True)]
        for kept, count in zip(found, told, strict=True):
            interval = binomtest(count, COMPARED).proportion_ci(method="exact")
            kept[str(number)] = {"share": count / COMPARED, "interval": list(interval)}
    return found


def figures(
    own: Population, others: Mapping[str, Population], splits: int, confidence: float, size: int
) -> study.Content:
    """By promised error: how often it holds, the answered share beside the oracle's, and what is answered elsewhere."""
    found: study.Content = {}
    scores, wrong = own.scores, own.wrong
    assert wrong is not None
    for error in PROMISES:
        novelty = {
            str(share): over_splits(own, others, error, confidence, size, splits, share) for share in NOVELTY
        }
        found[str(error)] = {
            **over_splits(own, others, error, confidence, size, splits),
            "certain": certain(scores, wrong, error, confidence, size),
            "oracle": oracle(scores, wrong, error),
            "novelty": novelty,
        }
    return found


def over_splits(
    own: Population,
    others: Mapping[str, Population],
    error: float,
    confidence: float,
    size: int,
    splits: int,
    novelty: float | None = None,
) -> study.Content:
    """How often a promise holds, what is answered, and what is answered elsewhere."""
    rows = [drawn(own, error, confidence, size, seed, novelty) for seed in range(splits)]
    answers, errors, limits = zip(*rows, strict=True)
    held = sum(each <= error for each in errors)
    shares = torch.tensor(answers, dtype=torch.float64)
    return {
        "held": held / splits,
        "interval": list(binomtest(held, splits).proportion_ci(method="exact")),
        "answered": sum(answers) / splits,
        "range": shares.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist(),
        "error": sum(errors) / splits,
        "none": sum(not answered for answered in answers) / splits,
        "elsewhere": {name: elsewhere(other, limits) for name, other in others.items()},
    }


@dataclass(kw_only=True)
class TriageStudy(study.Study):
    """Recorded predictions of four tasks."""

    folder: study.Folder
    seeds: study.Seeds = 1
    tasks: study.Names = None
    splits: Annotated[int, typer.Option(help="Random draws of calibration inputs.", min=1)] = 1000
    calibrate: Annotated[int, typer.Option(help="Predictions that test the promise.", min=60)] = 2000
    confidence: Annotated[float, typer.Option(help="With which it is promised.")] = 0.95
    recipe: Annotated[str, typer.Option(help="Recipe that the tasks change.")] = "sentiment_deterministic"
    output: study.Output = study.DATA / "triage.json"
    set_: study.Keys = None

    def __post_init__(self) -> None:
        self.names = study.chosen("tasks", self.tasks, SETTINGS)

    def setting(self) -> study.Content:
        """What all runs have in common."""
        common = {"splits": self.splits, "calibrate": self.calibrate, "confidence": self.confidence}
        return {"recipe": self.recipe, "pilot": PILOT, "set": self.overrides, "files": COMPARED, **common}

    def jobs(self) -> Iterator[study.Job]:
        """The tasks, seed by seed."""
        common = ("data.out_of_domain=null", "data.shifted=null")
        for seed in range(self.seeds):
            for name in self.names:
                keys = (*common, *SETTINGS[name], *self.overrides, f"training.seed={seed}")
                yield study.Job({"task": name, "seed": seed}, self.recipe, keys, f"{name}/seed-{seed}")

    def measure(self, job: study.Job) -> study.Run:
        """Trains a network, records its predictions of all texts that it was not trained on, and draws from them."""
        place = self.place(job)
        found = recorded(job, place)
        own = found[OWN]
        others = {name: each for name, each in found.items() if name != OWN}
        assert own.wrong is not None
        first = job.head["seed"] == 0  # files are compared for one network a task, which takes longest
        told = {name: noticed(own, each, self.calibrate) for name, each in found.items() if first}
        return {
            "predictions": len(own.scores),
            "error": float(own.wrong.double().mean()),
            "promises": figures(own, others, self.splits, self.confidence, self.calibrate),
            "auroc": {
                name: [
                    float(ood_auroc(getattr(own, key), getattr(each, key))) for key in ("scores", "distances")
                ]
                for name, each in others.items()
            },
            "noticed": {name: each[0] for name, each in told.items()},
            "noticed_by_distance": {name: each[1] for name, each in told.items()},
        }

    def said(self, run: study.Run) -> str:
        return ", ".join(
            f"{float(error):.0%}: held {row['held']:.3f}, answered {row['answered']:.3f} of {row['oracle']:.3f}"
            for error, row in run["promises"].items()
        )

    def summarise(self, runs: Sequence[study.Run]) -> study.Content:
        """Of the runs, whose intervals are over splits, the worst; of limits of distance means over seeds."""
        tasks = list(dict.fromkeys(run["task"] for run in runs))
        by_task = {name: [run for run in runs if run["task"] == name] for name in tasks}
        return {
            "tasks": tasks,
            "worst": min(_held(runs), default=None),
            "novelty": {
                name: {
                    error: by_limit([run["promises"][error] for run in own]) for error in own[0]["promises"]
                }
                for name, own in by_task.items()
            },
            "auroc": {
                name: {
                    other: [study.interval(run["auroc"][other][place] for run in own) for place in (0, 1)]
                    for other in own[0]["auroc"]
                }
                for name, own in by_task.items()
            },
        }

    def main(self) -> study.Content:
        """Prints the table of all runs."""
        content = super().main()
        Console(width=110).print(table(content["runs"]))
        return content


def by_limit(rows: Sequence[Mapping[str, Any]]) -> study.Content:
    """Means over networks by limit of distance, "none" for none; the least share of splits in which a promise holds."""
    limits = {"none": rows, **{name: [row["novelty"][name] for row in rows] for name in rows[0]["novelty"]}}
    return {
        name: {
            "held": min(each["held"] for each in own),
            "answered": study.interval(each["answered"] for each in own),
            "error": study.interval(each["error"] for each in own),
            "elsewhere": {
                other: study.interval(each["elsewhere"][other]["answered"] for each in own)
                for other in own[0]["elsewhere"]
            },
        }
        for name, own in limits.items()
    }


def _held(runs: Sequence[study.Run]) -> Iterator[float]:
    for run in runs:
        for row in run["promises"].values():
            yield from (each["held"] for each in (row, *row["novelty"].values()))


def recorded(job: study.Job, place: Path) -> dict[str, Population]:
    """Predictions of the texts that were not trained on, by data set, kept in the run's folder."""
    file = place / "recorded.json"
    if not file.exists():
        task, _ = study.fit(job, place)
        network = load_network(place)
        trained = task.texts.train.keys()
        rows: dict[str, list[tuple[float, int, bool | None, float]]] = {}
        distance = FeatureDistance.fit(task.features(network, task.texts.train.take(FITTED)))
        for name, texts in unseen(task):
            new = [
                row for row, text in enumerate(texts.texts) if text_key(text, texts.pair(row)) not in trained
            ]
            if not new:
                continue
            probabilities = study.probabilities(network, task, texts.rows(new)).double()
            far = distance(task.features(network, texts.rows(new)).inputs)
            classes = probabilities.argmax(dim=-1).tolist()
            labels = None if texts.labels is None else [texts.labels[row] for row in new]
            wrong = [None if labels is None else each != labels[place] for place, each in enumerate(classes)]
            rows.setdefault(name, []).extend(
                zip((1 - probabilities.amax(dim=-1)).tolist(), classes, wrong, far.tolist(), strict=True)
            )
        study.write_json(rows, file)
    return {name: population(each) for name, each in json.loads(file.read_text()).items()}


def population(rows: Sequence[tuple[float, int, bool | None, float]]) -> Population:
    """Recorded predictions as tensors."""
    scores, labels, wrong, far = zip(*rows, strict=True)
    return Population(
        torch.tensor(scores, dtype=torch.float64),
        labels,
        None if None in wrong else torch.tensor(wrong),
        torch.tensor(far, dtype=torch.float64),
    )


def unseen(task: Any) -> Iterator[tuple[str, TextDataset]]:
    """The parts that were not trained on, the rest of the training part, which the limit left out, and other data."""
    whole = task.recipe.data.model_copy(update={"limits": type(task.recipe.data.limits)()}).load()
    yield from ((OWN, texts) for texts in (whole.validation, whole.test, whole.train))
    yield from (
        (texts.source.partition(" ")[0], texts) for role, texts in task.measured().items() if role != "test"
    )


def table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """By task and promise, in percent."""
    shown = Table()
    for heading in ("task", "wrong", "promise", "held in", "answered", "oracle", "error of answered"):
        shown.add_column(heading, no_wrap=True)
    for run in runs:
        for error, row in run["promises"].items():
            cells = (row["held"], row["answered"], row["oracle"], row["error"])
            words = [f"{100 * value:.1f}" for value in cells]
            shown.add_row(run["task"], f"{100 * run['error']:.1f}", f"{100 * float(error):g}", *words)
    return shown


STUDY = TriageStudy
