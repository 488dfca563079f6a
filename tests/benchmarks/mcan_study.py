"""MCAN on questions about images with every attention method, as they are and with noise on the images' features.

    python tests/benchmarks/study.py mcan runs/mcan --seeds 3

Three tables at the size of a recipe: the methods (table 5 of Zhang et al., ICML 2021, and of the paper on alignment
attention, NeurIPS 2021), the upward path of belief networks without either of its parts (table 8 of the former), and
the weight of the alignment by conditional transport (table 9 of the latter).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import study
import typer

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


@dataclass(kw_only=True)
class McanStudy(study.VariantStudy):
    """Variants of one recipe of questions about images."""

    recipe: Annotated[
        str, typer.Option(help="Recipe that the variants change; vqa_v2_paper is the full size.")
    ] = "easy_vqa"
    output: study.Output = study.DATA / "visual_questions.json"

    shown = ("accuracy", "accuracy_noisy", "pavpu", "pavpu_noisy")
    known = VARIANTS
    common = ("report.baseline=false", "report.head_examples=0", "report.samples=0", "report.resamples=100")
    measures = (*FIGURES, "seconds")

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


STUDY = McanStudy
