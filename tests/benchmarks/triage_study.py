"""Whether promised errors hold, and what they cost in answered inputs, over random draws of recorded predictions.

    PROBATTN_DATA=/data python tests/benchmarks/study.py triage runs/triage

MiniLM is fine-tuned on four tasks. Its predictions of 4,000 or more texts that it was not trained on stand for all
inputs that there are, so that the error at each threshold is known. From them 500 inputs are drawn that say where the
tests of a policy begin, and 2,000 (`--calibrate`) that test the promise, all with replacement: is the error among all
inputs that the policy answers at most the promised one, and how many more would the oracle answer, which knows the
largest threshold whose error is the promised one? It writes docs/data/triage.json.
"""

from __future__ import annotations

import json
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

from probattn.data import text_key
from probattn.metrics.functional import controlled_threshold, risk_coverage_curve, sequence_start
from probattn.tasks import load_network

PILOT = 500
SETTINGS: dict[str, list[str]] = {
    "clinc150": [
        "data.train=clinc150",
        "data.max_length=32",
        "training.epochs=2",
        "training.learning_rate=3e-4",
    ],
    "banking77": [
        "data.train=banking77",
        "data.max_length=64",
        "data.limits={train: 6000}",
        "training.epochs=3",
        "training.learning_rate=3e-4",
    ],
    "rotten_tomatoes": ["data.train=rotten_tomatoes", "data.limits={train: 3000}", "training.epochs=2"],
    "snli": ["data.train=snli", "data.max_length=64", "data.limits={train: 4000}", "training.epochs=2"],
}
"""Keys of the recipe by task."""
PROMISES = (0.02, 0.05, 0.1)


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
    scores: Tensor, wrong: Tensor, error: float, confidence: float, size: int, seed: int
) -> tuple[float, float]:
    """Of one draw of calibration inputs: the share of all inputs that the policy answers, and the error among them."""
    rows = torch.randint(len(scores), (PILOT + size,), generator=torch.Generator().manual_seed(seed))
    pilot, held = rows[:PILOT], rows[PILOT:]
    start = sequence_start(scores[pilot], wrong[pilot], error=error)
    found = controlled_threshold(scores[held], wrong[held], error=error, confidence=confidence, start=start)
    answered = scores <= found.threshold
    return float(answered.double().mean()), float(wrong[answered].double().mean()) if answered.any() else 0.0


def figures(scores: Tensor, wrong: Tensor, splits: int, confidence: float, size: int) -> study.Content:
    """By promised error: how often it holds, and the answered share beside the oracle's."""
    found: study.Content = {}
    for error in PROMISES:
        rows = [drawn(scores, wrong, error, confidence, size, seed) for seed in range(splits)]
        held = sum(wrong <= error for _, wrong in rows)
        shares = torch.tensor([answered for answered, _ in rows], dtype=torch.float64)
        share, mistakes = (sum(values) / splits for values in zip(*rows, strict=True))
        found[str(error)] = {
            "held": held / splits,
            "interval": list(binomtest(held, splits).proportion_ci(method="exact")),
            "answered": share,
            "range": shares.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist(),
            "error": mistakes,
            "certain": certain(scores, wrong, error, confidence, size),
            "oracle": oracle(scores, wrong, error),
            "none": sum(not answered for answered, _ in rows) / splits,
        }
    return found


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
        return {"recipe": self.recipe, "pilot": PILOT, "set": self.overrides, **common}

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
        scores, wrong = recorded(job, place)
        return {
            "predictions": len(scores),
            "error": float(wrong.double().mean()),
            "promises": figures(scores, wrong, self.splits, self.confidence, self.calibrate),
        }

    def said(self, run: study.Run) -> str:
        return ", ".join(
            f"{float(error):.0%}: held {row['held']:.3f}, answered {row['answered']:.3f} of {row['oracle']:.3f}"
            for error, row in run["promises"].items()
        )

    def summarise(self, runs: Sequence[study.Run]) -> study.Content:
        """The runs as they are: intervals are over splits."""
        return {"tasks": [run["task"] for run in runs], "worst": min(_held(runs), default=None)}

    def main(self) -> study.Content:
        """Prints the table of all runs."""
        content = super().main()
        Console(width=110).print(table(content["runs"]))
        return content


def _held(runs: Sequence[study.Run]) -> Iterator[float]:
    for run in runs:
        yield from (row["held"] for row in run["promises"].values())


def recorded(job: study.Job, place: Path) -> tuple[Tensor, Tensor]:
    """Uncertainty and error of each text that was not trained on, kept in the run's folder."""
    file = place / "recorded.json"
    if not file.exists():
        task, _ = study.fit(job, place)
        network = load_network(place)
        trained = task.texts.train.keys()
        rows: list[tuple[float, bool]] = []
        for texts in unseen(task):
            new = [
                row for row, text in enumerate(texts.texts) if text_key(text, texts.pair(row)) not in trained
            ]
            if not new:
                continue
            probabilities = study.probabilities(network, task, texts.rows(new))
            labels = torch.tensor([texts.labels[row] for row in new])
            wrong = (probabilities.argmax(dim=-1) != labels).tolist()
            rows += zip((1 - probabilities.double().amax(dim=-1)).tolist(), wrong, strict=True)
        study.write_json(rows, file)
    found = json.loads(file.read_text())
    return torch.tensor([row[0] for row in found], dtype=torch.float64), torch.tensor(
        [row[1] for row in found]
    )


def unseen(task: Any) -> Iterator[Any]:
    """The parts that were not trained on, and the rest of the training part, which the limit left out."""
    whole = task.recipe.data.model_copy(update={"limits": type(task.recipe.data.limits)()}).load()
    yield from (whole.validation, whole.test, whole.train)


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
