"""GraphWriter with soft attention, with a penalty on heads' parameters and with heads that repel each other.

    PROBATTN_DATA=/data python tests/benchmarks/study.py graph_text runs/graph_text --seeds 3

The three columns of table 4 of An et al. (EMNLP 2020), at the size of a recipe: the network as it is, the penalty on
the cosine similarity of heads' parameters in the encoder (appendix C.6), and repulsive heads there.
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

from probattn.tasks.graph_text.measures import MEASURES

SOFT = "soft"
VARIANTS: Mapping[str, Sequence[str]] = {
    SOFT: ("repulsion=null",),
    "cosine": ("repulsion=null", "disagreement={method: parameters, layers: encoder, weight: 1.0}"),
    "repulsive": (),
}
"""Keys of the recipe that each variant changes."""
SHARES = {name: text.unit == "share" for name, text in MEASURES.items()}


def summarise(runs: Sequence[study.Run]) -> study.Content:
    """Means over seeds by variant, and differences to soft attention of the same seed."""
    soft = study.by_seed(runs, variant=SOFT)
    summary: study.Content = {}
    for variant in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == variant]
        summary[variant] = study.means(own, (*MEASURES, "seconds"))
        if variant != SOFT and soft:
            summary[variant]["difference"] = study.differences(own, soft, MEASURES)
    return summary


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
class GraphTextStudy(study.Study):
    """Variants of one recipe of texts about graphs."""

    folder: study.Folder
    seeds: study.Seeds = 3
    variants: study.Names = None
    recipe: Annotated[
        str, typer.Option(help="Recipe that the variants change; agenda_paper is the full size.")
    ] = "agenda_reduced"
    output: study.Output = study.DATA / "graph_texts.json"
    set_: study.Keys = None

    shown = ("bleu4", "meteor", "rougeL", "perplexity", "entities", "repeated_clauses")
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
        common = ("report.baseline=false", "report.head_texts=0", "report.samples=0", "report.resamples=100")
        for seed, name in product(range(self.seeds), self.names):
            keys = (*common, *VARIANTS[name], *self.overrides, f"training.seed={seed}")
            yield study.Job({"variant": name, "seed": seed}, self.recipe, keys, f"{name}/seed-{seed}")

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

    def main(self) -> study.Content:
        """Prints the table of all runs."""
        content = super().main()
        Console(width=120).print(table(summarise(content["runs"])))
        return content


STUDY = GraphTextStudy
