"""Accuracy of the self-attentive sentence classifier against its number of heads, with and without repulsion.

    PROBATTN_DATA=/data python tests/benchmarks/study.py head_count runs/heads --heads 2,5,10,20,30 --seeds 3

The form of An et al. 2020, Fig. 3. Training, sizes and measures are those of the study of repulsion; it takes two
heads to compare. It writes docs/data/head_counts.json, with mean accuracy and its interval by method and number of
heads; `docs/_figures/head_counts.py` draws it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import study
import typer
from repulsion_study import METHODS, PLAIN, SUBJECTS, job_of, measure_job, reductions


def summarise(runs: Sequence[study.Run]) -> dict[str, dict[int, Any]]:
    """Mean accuracy over seeds with its interval, by method and number of heads."""
    groups: dict[str, dict[int, list[float]]] = {}
    for run in sorted(runs, key=lambda run: (run["method"], run["heads"])):
        groups.setdefault(run["method"], {}).setdefault(run["heads"], []).append(run["accuracy"])
    return {
        method: {heads: study.interval(values) for heads, values in own.items()}
        for method, own in groups.items()
    }


@dataclass(kw_only=True)
class HeadCountStudy(study.Study):
    """Numbers of heads, of one subject of the study of repulsion."""

    folder: study.Folder
    heads: Annotated[str, typer.Option(help="Numbers of heads, separated by commas.")] = "2,5,10,20,30"
    seeds: study.Seeds = 3
    subject: Annotated[str, typer.Option(help="The network and its data.")] = "trec"
    methods: study.Names = f"{PLAIN},svgd"
    output: study.Output = study.DATA / "head_counts.json"
    full: study.Full = False
    set_: study.Keys = None

    summarise = staticmethod(summarise)
    measure = measure_job
    shown = ("accuracy",)

    def __post_init__(self) -> None:
        if self.subject not in SUBJECTS:
            raise typer.BadParameter(f"expected one of {', '.join(SUBJECTS)}, got {self.subject!r}")
        self.names = study.chosen("methods", self.methods, METHODS)
        self.counts = [int(count) for count in self.heads.split(",")]
        if min(self.counts) < 2:
            raise typer.BadParameter(f"--heads: expected numbers >= 2, got {min(self.counts)}")

    @property
    def overrides(self) -> list[str]:
        return [*reductions(self.subject, self.full), *(self.set_ or [])]

    def setting(self) -> study.Content:
        return {"subject": self.subject, "overrides": self.overrides}

    def jobs(self) -> Iterator[study.Job]:
        """Seed by seed, all numbers of heads and methods."""
        for seed, count, method in product(range(self.seeds), self.counts, self.names):
            keys = [*self.overrides, f"network.config.num_attention_heads={count}"]
            job = job_of(self.subject, method, seed, keys)
            yield study.Job(job.head | {"heads": count}, job.recipe, job.keys, f"heads-{count}/{job.folder}")


STUDY = HeadCountStudy
