"""Intervals of predicted relatedness on SICK over seeds: their coverage before and after calibration.

    PROBATTN_DATA=/data python tests/benchmarks/study.py relatedness runs/relatedness --seeds 3

MiniLM with a head of one number is fine-tuned by the recipe `relatedness_babn`, deterministic and with BABN. Its
intervals are stretched by the validation pairs (SICK's trial part, 500) and measured on 2,000 of the test pairs.
`--full` takes all 4,500 pairs to train on and all 4,927 to test on. It writes docs/data/relatedness.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import study

from probattn.tasks import evaluate

RECIPE = "relatedness_babn"
SIZES = ("regression.limits.test=2000",)
FULL = ("regression.limits={train: null, validation: null, test: null}",)
FIGURES = (
    "rmse",
    "pearson",
    "spearman",
    "nll",
    "coverage_80",
    "stretched_coverage_80",
    "score_80",
    "coverage_95",
    "stretched_coverage_95",
    "score_95",
)
MODELS = ("deterministic", "bayesian_mean")


@dataclass(kw_only=True)
class RelatednessStudy(study.Study):
    """One recipe over seeds."""

    folder: study.Folder
    seeds: study.Seeds = 3
    output: study.Output = study.DATA / "relatedness.json"
    full: study.Full = False
    set_: study.Keys = None

    words = "{0}"

    def jobs(self) -> Iterator[study.Job]:
        """Seed by seed."""
        for seed in range(self.seeds):
            keys = (*(FULL if self.full else SIZES), *self.overrides, f"training.seed={seed}")
            yield study.Job({"seed": seed}, RECIPE, keys, f"seed{seed}")

    def setting(self) -> study.Content:
        """What the runs have in common."""
        return {"recipe": RECIPE, "full": self.full, "set": self.overrides}

    def measure(self, job: study.Job) -> study.Run:
        """Trains both networks and measures them."""
        task, _ = study.fit(job, self.place(job))
        results = evaluate(task, self.place(job))
        scores = {model: results.score(model, "test") for model in MODELS}
        sizes = task.sizes()
        return {"sizes": dict(sizes)} | {
            model: {name: score.values[name] for name in FIGURES}
            for model, score in scores.items()
            if score is not None
        }

    def said(self, run: study.Run) -> str:
        return ", ".join(f"{model} {run[model]['rmse']:.3f}" for model in MODELS)

    def summarise(self, runs: Sequence[study.Run]) -> Any:
        """Mean and interval over seeds of each figure, and of the differences."""
        own, others = ([{**run[model], "seed": run["seed"]} for run in runs] for model in reversed(MODELS))
        base = {run["seed"]: run for run in others}
        return {
            "deterministic": study.means(others, FIGURES),
            "bayesian_mean": study.means(own, FIGURES),
            "difference": study.differences(own, base, FIGURES),
        }


STUDY = RelatednessStudy
