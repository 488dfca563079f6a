"""Accuracy of the self-attentive sentence classifier against its number of heads, with and without repulsion.

    PROBATTN_DATA=/data python tests/benchmarks/head_count_study.py runs/heads --heads 2,5,10,20,30 --seeds 3

The form of An et al. 2020, Fig. 3. Training, sizes and measures are those of `repulsion_study.py`; it takes two
heads to compare. Runs that are finished are read and interrupted ones resumed. After each run it writes
docs/data/head_counts.json, with mean accuracy and its interval by method and number of heads;
`docs/_figures/head_counts.py` draws it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from repulsion_study import METHODS, PLAIN, SUBJECTS, Job, Run, reductions, run_one

from probattn.metrics.functional import mean_interval
from probattn.tasks.run import package_versions

OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "data" / "head_counts.json"


def summarise(runs: Sequence[Run]) -> dict[str, dict[int, dict[str, float]]]:
    """Mean accuracy over seeds with its interval, by method and number of heads."""
    groups: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        groups.setdefault((run["method"], run["heads"]), []).append(run["accuracy"])
    summary: dict[str, dict[int, dict[str, float]]] = {}
    for (method, heads), values in sorted(groups.items()):
        summary.setdefault(method, {})[heads] = mean_interval(values)._asdict()
    return summary


def main(
    folder: Annotated[Path, typer.Argument(help="Where the runs go.")],
    heads: Annotated[str, typer.Option(help="Numbers of heads, separated by commas.")] = "2,5,10,20,30",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 3,
    subject: Annotated[str, typer.Option(help="The network and its data.")] = "trec",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = f"{PLAIN},svgd",
    output: Annotated[Path, typer.Option(help="The file of results.")] = OUTPUT,
    full: Annotated[bool, typer.Option("--full", help="Sizes of the recipe.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipe.")] = None,
) -> None:
    """Runs what is missing, seed by seed, and writes the results after each run."""
    chosen = methods.split(",")
    for name, known in ((subject, SUBJECTS), *((method, METHODS) for method in chosen)):
        if name not in known:
            raise typer.BadParameter(f"expected one of {', '.join(known)}, got {name!r}")
    overrides = [*reductions(subject, full), *(set_ or [])]
    counts = [int(count) for count in heads.split(",")]
    if min(counts) < 2:
        raise typer.BadParameter(f"--heads: expected numbers >= 2, got {min(counts)}")
    runs: list[dict[str, Any]] = []
    for seed, count, method in product(range(seeds), counts, chosen):
        own = [*overrides, f"network.config.num_attention_heads={count}"]
        found = run_one(Job(subject, method, seed), SUBJECTS[subject].recipe, own, folder / f"heads-{count}")
        runs.append(found | {"heads": count})
        setting = {"subject": subject, "overrides": overrides, "versions": package_versions()}
        content = {"setting": setting, "runs": runs, "summary": summarise(runs)}
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        typer.echo(f"{count} heads, {method}, seed {seed}: accuracy {found['accuracy']:.4f}")


if __name__ == "__main__":
    typer.run(main)
