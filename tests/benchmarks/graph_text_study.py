"""GraphWriter with soft attention, with a penalty on heads' parameters and with heads that repel each other.

    PROBATTN_DATA=/data python tests/benchmarks/study.py graph_text runs/graph_text --seeds 3

The three columns of table 4 of An et al. (EMNLP 2020), at the size of a recipe: the network as it is, the penalty on
the cosine similarity of heads' parameters in the encoder (appendix C.6), and repulsive heads there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import study
import typer
from rich.table import Table

from probattn.tasks.graph_text.results import MEASURES

SOFT = "soft"
VARIANTS: Mapping[str, Sequence[str]] = {
    SOFT: ("repulsion=null",),
    "cosine": ("repulsion=null", "disagreement={method: parameters, layers: encoder, weight: 1.0}"),
    "repulsive": (),
}
"""Keys of the recipe that each variant changes."""
SHARES = {name: text.unit == "share" for name, text in MEASURES.items()}


def table(summary: Mapping[str, Any]) -> Table:
    """A row a measure, a column a variant: means, with the difference to soft attention and its interval."""
    shown = Table("measure", *summary)
    for name, text in MEASURES.items():
        factor = 100 if SHARES[name] else 1
        cells = []
        for values in summary.values():
            words = f"{factor * values[name]['mean']:.2f}"
            gap = values.get("difference", {}).get(name)
            if gap is not None:
                words += f" ({factor * gap['mean']:+.2f}"
                known = gap["low"] is not None
                words += f" [{factor * gap['low']:+.2f}, {factor * gap['high']:+.2f}])" if known else ")"
            cells.append(words)
        shown.add_row(text.title, *cells)
    return shown


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
    table = staticmethod(table)

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
