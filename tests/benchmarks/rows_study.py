"""The papers' rows on texts, each by its recipe, on the data at hand, beside the papers' figures.

    PROBATTN_DATA=/data python tests/benchmarks/study.py rows runs/rows --seeds 1

Each run is `probattn train RECIPE` and `probattn evaluate`: the recipe's network and the deterministic one beside it.
Two processes share the work by `--rows`, each with an `--output` of its own; `--finished` then puts all into one file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import study

from probattn.report.record import BESIDE
from probattn.tasks import evaluate

SOFT, METHOD = "deterministic", "method"
ROWS: dict[str, tuple[str, ...]] = {
    "rte_babn": ("accuracy",),
    "mrpc_babn": ("accuracy", "f1"),
    "cola_babn": ("matthews",),
    "qnli_babn": ("accuracy",),
    "mnli_babn": ("accuracy",),
    "sst2_babn": ("accuracy",),
    "relatedness_babn": ("pearson", "spearman"),
    "squad2_babn": ("exact", "f1", "exact_tuned", "f1_tuned"),
    "spans_babn": ("exact", "f1"),
    "slots_babn": ("f1",),
    "snli_babn": ("accuracy",),
    "snli_decomposable": ("accuracy",),
    "snli_esim": ("accuracy",),
    "snli_self_attentive": ("accuracy",),
    "sick_babn": ("accuracy",),
    "choices_babn": ("accuracy",),
    "spam_babn": ("accuracy", "f1"),
}
"""Measures by recipe."""


def values(score: Any) -> Mapping[str, float | None]:
    """Measures of one model on one data set, by name."""
    found: Mapping[str, float | None] = getattr(score, "values", None) or vars(score)
    return found


def summarise(runs: Sequence[study.Run]) -> study.Content:
    """By recipe, data set, model and measure: mean and interval over seeds."""
    summary: study.Content = {}
    for recipe in dict.fromkeys(run["recipe"] for run in runs):
        own = [run for run in runs if run["recipe"] == recipe]
        scores = own[0]["scores"]
        found = {
            data: {
                model: {
                    name: study.interval(run["scores"][data][model][name] for run in own) for name in measures
                }
                for model, measures in models.items()
            }
            for data, models in scores.items()
        }
        summary[recipe] = {
            "method": own[0]["method"],
            "sizes": own[0]["sizes"],
            "minutes": study.interval(run["seconds"] / 60 for run in own),
            "scores": found,
        }
    return summary


@dataclass(kw_only=True)
class RowsStudy(study.Study):
    """Recipes as they are."""

    folder: study.Folder
    seeds: study.Seeds = 1
    rows: study.Names = None
    output: study.Output = study.DATA / "rows.json"
    finished: study.Finished = False
    set_: study.Keys = None

    def __post_init__(self) -> None:
        self.names = study.chosen("rows", self.rows, ROWS)

    def setting(self) -> study.Content:
        """Keys that all runs change."""
        return {"set": self.overrides}

    def jobs(self) -> Iterator[study.Job]:
        """The recipes, seed by seed."""
        for seed in range(self.seeds):
            for name in self.names:
                keys = (*self.overrides, f"training.seed={seed}")
                yield study.Job({"recipe": name, "seed": seed}, name, keys, f"{Path(name).stem}/seed-{seed}")

    def measure(self, job: study.Job) -> study.Run:
        """Trains both networks and measures them."""
        started = time.monotonic()
        task, _ = study.fit(job, self.place(job))
        results = evaluate(task, self.place(job))
        scores: study.Content = {}
        for score in results.scores:
            own = values(score)
            kept = {name: own[name] for name in ROWS[job.recipe] if own.get(name) is not None}
            if kept and score.model not in BESIDE:
                scores.setdefault(score.data, {})[SOFT if score.model == SOFT else METHOD] = kept
        return {
            "method": results.run.method,
            "sizes": dict(task.sizes()),
            "scores": scores,
            "seconds": time.monotonic() - started,
        }

    def said(self, run: study.Run) -> str:
        return ", ".join(
            f"{data} {model} {name} {value:.3f}"
            for data, models in run["scores"].items()
            for model, measures in models.items()
            for name, value in measures.items()
        )

    summarise = staticmethod(summarise)


STUDY = RowsStudy
