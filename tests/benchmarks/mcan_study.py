"""MCAN on questions about images with every attention method, as they are and with noise on the images' features.

    python tests/benchmarks/study.py mcan runs/mcan --seeds 3

Three tables at the size of a recipe: the methods (table 5 of Zhang et al., ICML 2021, and of the paper on alignment
attention, NeurIPS 2021), the upward path of belief networks without either of its parts (table 8 of the former), and
the weight of the alignment by conditional transport (table 9 of the latter).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import study
import typer
from rich.console import Console
from rich.table import Table

SOFT = "soft"
PLAIN = "attention={method: deterministic}"
VARIANTS: Mapping[str, Sequence[str]] = {
    SOFT: (PLAIN,),
    "bam": ("attention={method: bam}",),
    "babn": ("attention={method: babn}",),
    "gan": (PLAIN, "alignment={method: gan}"),
    "ct": (PLAIN, "alignment={method: ct}"),
    "repulsive": (PLAIN, "repulsion={}"),
    "no_rho": ("attention={method: babn, rho: 0.0, sigma: 1e-6}",),
    "no_sigma": ("attention={method: babn, rho: 1.5, sigma: 0.0}",),
    "upward": ("attention={method: babn, rho: 1.5, sigma: 1e-6}",),
    "weight_1": (PLAIN, "alignment={method: ct, weight: 1.0}"),
    "weight_0.1": (PLAIN, "alignment={method: ct, weight: 0.1}"),
}
"""Keys of the recipe that each variant changes; the weight of "ct" is 0.01."""
MEASURES = ("accuracy", "pavpu", "nll", "ece")
FIGURES = tuple(f"{name}{ending}" for ending in ("", "_noisy") for name in MEASURES)
"""Measures of the test questions as they are, and of the noisy ones."""


def summarise(runs: Sequence[study.Run]) -> study.Content:
    """Means over seeds by variant, and differences to soft attention of the same seed."""
    soft = study.by_seed(runs, variant=SOFT)
    summary: study.Content = {}
    for variant in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == variant]
        summary[variant] = study.means(own, (*FIGURES, "seconds"))
        if variant != SOFT and soft:
            summary[variant]["difference"] = study.differences(own, soft, FIGURES)
    return summary


def table(summary: Mapping[str, Any]) -> Table:
    """A row a variant, a column a figure: means over seeds."""
    shown = Table("variant", *FIGURES)
    for variant, values in summary.items():
        shown.add_row(variant, *(f"{values[name]['mean']:.4f}" for name in FIGURES))
    return shown


@dataclass(kw_only=True)
class McanStudy(study.Study):
    """Variants of one recipe of questions about images."""

    folder: study.Folder
    seeds: study.Seeds = 3
    variants: study.Names = None
    recipe: Annotated[
        str, typer.Option(help="Recipe that the variants change; vqa_v2_paper is the full size.")
    ] = "easy_vqa"
    output: study.Output = study.DATA / "visual_questions.json"
    set_: study.Keys = None

    shown = ("accuracy", "accuracy_noisy", "pavpu", "pavpu_noisy")
    summarise = staticmethod(summarise)

    def __post_init__(self) -> None:
        self.names = study.chosen("variants", self.variants, VARIANTS)

    def setting(self) -> study.Content:
        """The recipe, and the keys that all runs change."""
        return {
            "recipe": self.recipe,
            "variants": {n: list(VARIANTS[n]) for n in self.names},
            "set": self.overrides,
        }

    def jobs(self) -> Iterator[study.Job]:
        """The variants, seed by seed."""
        common = (
            "report.baseline=false",
            "report.head_questions=0",
            "report.samples=0",
            "report.resamples=100",
        )
        for seed, name in product(range(self.seeds), self.names):
            keys = (*common, *VARIANTS[name], *self.overrides, f"training.seed={seed}")
            yield study.Job({"variant": name, "seed": seed}, self.recipe, keys, f"{name}/seed-{seed}")

    def measure(self, job: study.Job) -> study.Run:
        """Trains a network and measures its answers."""
        place: Path = self.place(job)
        task, trained = study.fit(job, place)
        results = task.evaluate(place)
        figures = {}
        for ending, data in (("", "test"), ("_noisy", "noisy")):
            scores = results.score(results.compared, data)
            figures |= {f"{name}{ending}": scores.values[name] for name in MEASURES}
        return {
            "steps": trained.step,
            "seconds": round(trained.seconds, 1),
            "questions": {**task.sizes(), "noise": task.recipe.visual_questions.noise},
            **figures,
        }

    def main(self) -> study.Content:
        """Prints the table of all runs."""
        content = super().main()
        Console(width=140).print(table(summarise(content["runs"])))
        return content


STUDY = McanStudy
