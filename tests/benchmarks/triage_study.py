"""Whether promised errors hold, and what they cost in answered inputs, over random draws of recorded predictions.

    PROBATTN_DATA=/data python tests/benchmarks/study.py triage runs/triage

MiniLM is fine-tuned on four tasks. Its predictions of 4,000 or more texts that it was not trained on stand for all
inputs that there are, so that the error at each threshold is known. From them 500 inputs are drawn that say where the
tests of a policy begin, and 2,000 that test the promise, all with replacement: is the error among all inputs that the
policy answers at most the promised one, and how many more would the oracle answer, which knows the largest threshold
whose error is the promised one? Beside them stand the network's predictions of other data: what the policy answers
there, and in how many of random files they are noticed without labels. Both are measured again for policies that leave
inputs far from the training data to a person (`--novelty`). It writes docs/data/triage.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import study
import torch
import typer
from scipy.stats import binom, binomtest
from torch import Tensor

from probattn.data import text_key
from probattn.inference import FeatureDistance
from probattn.inference.laplace import FITTED
from probattn.metrics.functional import (
    conformal_quantile,
    controlled_threshold,
    ood_auroc,
    risk_coverage_curve,
    sequence_start,
)
from probattn.tasks import load_network
from probattn.triage import Seen, dataset_shift

PILOT, HELD, CONFIDENCE = 500, 2000, 0.95
"""Inputs that say where tests begin, inputs that test a promise, and with which confidence it is promised."""
OTHERS = "data.out_of_domain=null", "data.shifted=null"
SETTINGS: dict[str, list[str]] = study.declared("triage")
"""Keys of the recipe by task."""
PROMISES = (0.02, 0.05, 0.1)
NOVELTY = (0.01, 0.05)
"""Shares of inputs like the training data that a policy may leave to a person as far from them."""
SAME = "own"
"""Name of the inputs like the training data, among the other data."""
FILES, COMPARED = (30, 100, 300), 300
"""Inputs of a file that is compared with the held-out ones, and files of each size."""


class Population(NamedTuple):
    """Predictions that stand for all inputs; ``wrong`` is None where the classes are unknown."""

    scores: Tensor
    labels: Sequence[int]
    wrong: Tensor | None
    distances: Tensor

    @classmethod
    def of(cls, rows: Sequence[tuple[float, int, bool | None, float]]) -> Population:
        """Of recorded predictions."""
        scores, labels, wrong, far = zip(*rows, strict=True)
        known = None if None in wrong else torch.tensor(wrong)
        return cls(torch.tensor(scores).double(), labels, known, torch.tensor(far).double())

    def seen(self, number: int, generator: torch.Generator) -> Seen:
        """What a policy keeps of some that are drawn."""
        rows = torch.randint(len(self.scores), (number,), generator=generator)
        labels = [str(self.labels[row]) for row in rows.tolist()]
        return Seen.of(self.scores[rows], labels, self.distances[rows])

    def largest(self, passes: Callable[[Any, Any], Any]) -> float:
        """The largest share, the most confident first, which passes by shares and errors."""
        curve = risk_coverage_curve(self.scores, self.wrong.double())
        coverages = curve.coverage[passes(curve.coverage.double(), curve.risk.double())]
        return float(coverages.max()) if len(coverages) else 0.0

    def oracle(self, error: float) -> float:
        """The largest share whose error is at most the promised one."""
        return self.largest(lambda _, risk: risk <= error)

    def certain(self, error: float) -> float:
        """The largest share at which held-out inputs with just the errors to be expected pass the exact test."""

        def passes(coverage: Tensor, risk: Tensor) -> Tensor:
            answered = (HELD * coverage).round().clamp_min(1)
            p = binom.cdf((answered * risk).round().numpy(), answered.numpy(), error)
            return torch.from_numpy(p <= 1 - CONFIDENCE)

        return self.largest(passes)

    def limits(self, error: float, novelty: float | None, rows: Tensor) -> tuple[float, float]:
        """The largest uncertainty and distance that the policy of one draw of held-out inputs answers."""
        limit = math.inf
        if novelty is not None:
            limit = conformal_quantile(self.distances[rows[PILOT:]], error=novelty)
        pilot, held = (part[self.distances[part] < limit] for part in (rows[:PILOT], rows[PILOT:]))
        start = sequence_start(self.scores[pilot], self.wrong[pilot], error=error)
        scores, wrong = self.scores[held], self.wrong[held]
        return controlled_threshold(
            scores, wrong, error=error, confidence=CONFIDENCE, start=start
        ).threshold, limit

    def under(self, limits: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor | None]:
        """By policy: the number of inputs that it answers, and of wrong answers."""
        answered = [(self.scores <= score) & (self.distances < distance) for score, distance in limits]
        answers = torch.stack([each.sum() for each in answered])
        return answers, None if self.wrong is None else torch.stack(
            [(each & self.wrong).sum() for each in answered]
        )


def drawn(size: int, seed: int) -> Tensor:
    """Rows of the inputs of one split, those that say where tests begin first."""
    return torch.randint(size, (PILOT + HELD,), generator=torch.Generator().manual_seed(seed))


def exact(count: int, number: int) -> list[float]:
    """Clopper and Pearson's interval."""
    return list(binomtest(count, number).proportion_ci(method="exact"))


def noticed(same: Population, other: Population) -> list[study.Content]:
    """By number of inputs, how many files are called unlike the held-out inputs: without distances, then with them."""
    by_size: list[study.Content] = [{}, {}]
    for number in FILES:
        told = [0, 0]
        for seed in range(COMPARED):
            generator = torch.Generator().manual_seed(seed)
            held = same.seen(HELD, generator)
            shift: Any = dataset_shift(other.seen(number, generator), held)
            plain = shift.model_copy(update={"distance": None, "distance_p": None})
            told = [count + bool(one.differences) for count, one in zip(told, (plain, shift), strict=True)]
        for shares, count in zip(by_size, told, strict=True):
            shares[str(number)] = {"share": count / COMPARED, "interval": exact(count, COMPARED)}
    return by_size


def over_splits(
    same: Population,
    others: Mapping[str, Population],
    error: float,
    splits: int,
    novelty: float | None = None,
    rows: Iterable[Tensor] | None = None,
) -> study.Content:
    """How often a promise holds, what is answered, and what is answered of other data; ``rows`` are of each split."""
    rows = (drawn(len(same.scores), seed) for seed in range(splits)) if rows is None else rows
    limits = [same.limits(error, novelty, split) for split in rows]
    answers, mistakes = same.under(limits)
    errors, shares = mistakes / answers.clamp_min(1), answers / len(same.scores)
    held = int((errors <= error).sum())
    elsewhere = {}
    for name, other in others.items():
        there, wrong = other.under(limits)
        rate = None if wrong is None or not there.any() else float(wrong.sum() / there.sum())
        elsewhere[name] = {"answered": float((there / len(other.scores)).mean()), "error": rate}
    return {
        "held": held / splits,
        "interval": exact(held, splits),
        "answered": float(shares.mean()),
        "error": float(errors.mean()),
        "elsewhere": elsewhere,
    }


@dataclass(kw_only=True)
class TriageStudy(study.Study):
    """Recorded predictions of four tasks."""

    folder: study.Folder
    seeds: study.Seeds = 1
    tasks: study.Names = None
    splits: Annotated[int, typer.Option(help="Random draws of held-out inputs.", min=1)] = 1000
    recipe: Annotated[str, typer.Option(help="Recipe that the tasks change.")] = "sentiment_deterministic"
    output: study.Output = study.DATA / "triage.json"
    set_: study.Keys = None

    def __post_init__(self) -> None:
        self.names = study.chosen("tasks", self.tasks, SETTINGS)

    def setting(self) -> study.Content:
        """What all runs have in common."""
        common = {"splits": self.splits, "calibrate": HELD, "confidence": CONFIDENCE}
        return {"recipe": self.recipe, "pilot": PILOT, "set": self.overrides, "files": COMPARED, **common}

    def jobs(self) -> Iterator[study.Job]:
        """The tasks, seed by seed."""
        for seed, name in product(range(self.seeds), self.names):
            keys = (f"data.train={name}", *OTHERS, *SETTINGS[name], *self.overrides, f"training.seed={seed}")
            yield study.Job({"task": name, "seed": seed}, self.recipe, keys, f"{Path(name).stem}/seed-{seed}")

    def measure(self, job: study.Job) -> study.Run:
        """Trains a network, records its predictions of all texts that it was not trained on, and draws from them."""
        found = recorded(job, self.place(job))
        same = found[SAME]
        others = {name: each for name, each in found.items() if name != SAME}
        first = job.head["seed"] == 0  # files are compared for one network a task, which takes longest
        told = {name: noticed(same, each) for name, each in found.items() if first}
        promises = {
            str(error): {
                **over_splits(same, others, error, self.splits),
                "certain": same.certain(error),
                "oracle": same.oracle(error),
                "novelty": {
                    str(share): over_splits(same, others, error, self.splits, share) for share in NOVELTY
                },
            }
            for error in PROMISES
        }
        return {
            "predictions": len(same.scores),
            "error": float(same.wrong.double().mean()),
            "promises": promises,
            "auroc": {
                name: [
                    float(ood_auroc(getattr(same, key), getattr(each, key)))
                    for key in ("scores", "distances")
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
        """The lowest rate at which a promise holds."""
        rows = [row for run in runs for row in run["promises"].values()]
        return {"worst": min(one["held"] for row in rows for one in (row, *row["novelty"].values()))}


def recorded(job: study.Job, place: Path) -> dict[str, Population]:
    """Predictions of the texts that were not trained on, by data set, kept in the run's folder."""
    file = place / "recorded.json"
    if not file.exists():
        task, _ = study.fit(job, place)
        network, trained = load_network(place), task.texts.train.keys()
        distance = FeatureDistance.fit(task.features(network, task.texts.train.take(FITTED)))
        whole = task.recipe.data.model_copy(update={"limits": type(task.recipe.data.limits)()}).load()
        data = [(SAME, texts) for texts in (whole.validation, whole.test, whole.train)]
        measured = [texts for role, texts in task.measured().items() if role != "test"]
        rows: dict[str, list[tuple[float, int, bool | None, float]]] = {}
        for name, texts in [*data, *((texts.source.partition(" ")[0], texts) for texts in measured)]:
            new = texts.rows(
                [
                    row
                    for row, text in enumerate(texts.texts)
                    if text_key(text, texts.pair(row)) not in trained
                ]
            )
            if not new.texts:
                continue
            probabilities = study.probabilities(network, task, new).double()
            classes = probabilities.argmax(dim=-1).tolist()
            labels = new.labels or [None] * len(classes)
            wrong = [
                None if label is None else label != one for one, label in zip(classes, labels, strict=True)
            ]
            far = distance(task.features(network, new).inputs).tolist()
            scores = (1 - probabilities.amax(dim=-1)).tolist()
            rows.setdefault(name, []).extend(zip(scores, classes, wrong, far, strict=True))
        study.write_json(rows, file)
    return {name: Population.of(each) for name, each in study.read_json(file).items()}


STUDY = TriageStudy
