"""GraphWriter with soft attention, with a penalty on heads' parameters and with heads that repel each other.

    PROBATTN_DATA=/data python tests/benchmarks/study.py graph_text runs/graph_text --seeds 3

The three columns of table 4 of An et al. (EMNLP 2020), at the size of a recipe: the network as it is, the penalty on
the cosine similarity of heads' parameters in the encoder (appendix C.6), and repulsive heads there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import study
import typer

from probattn.tasks.graph_text.results import MEASURES

SOFT = "soft"
VARIANTS: Mapping[str, Sequence[str]] = {
    SOFT: ("repulsion=null",),
    "cosine": ("repulsion=null", "disagreement={method: parameters, layers: encoder, weight: 1.0}"),
    "repulsive": (),
}
"""Keys of the recipe that each variant changes."""


@dataclass(kw_only=True)
class GraphTextStudy(study.VariantStudy):
    """Variants of one recipe of texts about graphs."""

    recipe: Annotated[
        str, typer.Option(help="Recipe that the variants change; agenda_paper is the full size.")
    ] = "agenda_reduced"
    output: study.Output = study.DATA / "graph_texts.json"

    shown = ("bleu4", "meteor", "rougeL", "perplexity", "entities", "repeated_clauses")
    known = VARIANTS
    common = ("report.baseline=false", "report.head_examples=0", "report.samples=0", "report.resamples=100")
    measures = (*MEASURES, "words", "seconds")

    def measure(self, job: study.Job) -> study.Run:
        """Trains a network and measures the texts that it writes."""
        place: Path = self.place(job)
        task, trained = study.fit(job, place)
        results = task.evaluate(place)
        (scores,) = results.scores
        return {
            "steps": trained.step,
            "seconds": round(trained.seconds, 1),
            "signature": results.signature,
            **scores.values,
        }


STUDY = GraphTextStudy
