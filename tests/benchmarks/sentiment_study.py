"""Accuracy and uncertainty of attention methods over seeds, paired with the deterministic network of the same seed.

    python tests/benchmarks/study.py sentiment runs/study --seeds 5

Each variant overrides keys of one recipe. It writes study.json into the folder, of which docs/data/sentiment_study.json
is a copy, and prints a table.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import study
import typer
from rich.console import Console
from rich.table import Table

from probattn.report import ModelKey, Results, read_results
from probattn.tasks import Classification, Network, evaluate, load_network

VARIANTS: dict[str, list[str]] = {
    "deterministic": ["attention.method=deterministic"],
    "babn": [],
    "babn truncated noise": ["attention.noise=truncated"],
    "babn KL over keys": ["attention.kl_reduction=keys"],
    "babn KL summed": ["attention.kl_reduction=sum"],
    "babn KL weight 1": ["training.kl_weight=1"],
    "bam": ["attention.method=bam"],
}
BASELINE = "deterministic"
HEALTH = ("spread", "concentration", "kl_nats", "kl_reduced")
MEASURES = (
    "accuracy",
    "nll",
    "ece",
    "overconfidence",
    "pavpu",
    "aurc",
    "auroc",
    "fpr95",
)


def rest_accuracy(trained: Network[Any], task: Classification, number: int) -> dict[str, float]:
    """Accuracy of the point prediction on training texts beyond ``data.limits.train``.

    The posterior expectation of a Bayesian network, one pass a text: more texts than the test set has, for less.
    """
    recipe = task.recipe
    everything = recipe.data.model_copy(
        update={"limits": recipe.data.limits.model_copy(update={"train": None})}
    )
    used = frozenset(task.texts.train.texts)
    pool = everything.load().train
    left = [row for row, text in enumerate(pool.texts) if text not in used]
    if not left:
        return {}
    rest = pool.rows(left).take(number)  # as the limits of a recipe choose: the file is in order of class
    rest = rest.rows(rest.shortest_first())
    return {"accuracy": study.accuracy(trained, task, rest), "texts": len(rest)}


def scores(results: Results) -> dict[str, dict[str, float]]:
    """Measures by data set, of the mean over draws or of the deterministic network."""
    model: ModelKey = (
        "deterministic" if results.score("bayesian_mean", results.in_domain.key) is None else "bayesian_mean"
    )
    found: dict[str, dict[str, float]] = {}
    for data in results.data:
        score = results.score(model, data.key)
        assert score is not None
        values = {measure: score.values.get(measure) for measure in MEASURES}
        found[data.key] = {measure: value for measure, value in values.items() if value is not None}
    return found


def summarise(runs: Sequence[study.Run]) -> study.Content:
    """Differences to the deterministic network of the same seed, and the posterior's health, over seeds."""
    base, summary = study.by_seed(runs, variant=BASELINE), {}
    for variant in dict.fromkeys(run["variant"] for run in runs):
        own = [*study.by_seed(runs, variant=variant).values()]
        rows: study.Content = {}
        for data, measure in ((data, measure) for data, row in own[0]["scores"].items() for measure in row):

            def value(run: study.Run, data: str = data, measure: str = measure) -> float:
                return float(run["scores"][data][measure])

            rows[f"{data}.{measure}"] = row = {"value": study.interval(map(value, own))}
            gap = study.paired(own, base, lambda run, other, value=value: value(run) - value(other))
            if variant != BASELINE and gap is not None:
                row["difference"] = gap
        summary[variant] = {"measures": rows, "health": mean_health([run["health"] for run in own])}
    return summary


def mean_health(runs: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """State of the posterior by site, averaged over runs; what no run has is left out."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for site, state in run.items():
            for name, value in state.items():
                found.setdefault(site, {}).setdefault(name, []).append(value)
    return {
        site: {name: statistics.fmean(numbers) for name, numbers in values.items()}
        for site, values in found.items()
    }


def table(summary: Mapping[str, Any]) -> Table:
    """Values, and differences to the deterministic network with their intervals."""
    shown = Table()
    for heading in ("variant", "data", "value", "difference [95% interval]", "seeds"):
        shown.add_column(heading, no_wrap=True)
    for variant, found in summary.items():
        for name, row in found["measures"].items():
            gap = row.get("difference")
            words = "" if gap is None else f"{gap['mean']:+.4f}"
            if gap is not None and gap["low"] is not None:
                words += f" [{gap['low']:+.4f}, {gap['high']:+.4f}]"
            shown.add_row(variant, name, f"{row['value']['mean']:.4f}", words, str(row["value"]["seeds"]))
    return shown


@dataclass(kw_only=True)
class SentimentStudy(study.Study):
    """Variants of one recipe of classification."""

    folder: study.Folder
    seeds: study.Seeds = 5
    recipe: Annotated[str, typer.Option(help="Recipe that the variants change.")] = "sentiment_babn"
    variants: study.Names = None
    rest: Annotated[
        int, typer.Option(min=0, help="Most training texts left out by data.limits.train to test points on.")
    ] = 0
    set_: study.Keys = None

    summarise = staticmethod(summarise)

    def __post_init__(self) -> None:
        self.names = study.chosen("variants", self.variants, VARIANTS)

    def begin(self) -> study.Content:
        return {"recipe": self.recipe, "set": self.overrides, "rest": self.rest, "runs": []}

    def jobs(self) -> Iterator[study.Job]:
        for seed, name in product(range(self.seeds), self.names):
            keys = (*self.overrides, *VARIANTS[name], f"training.seed={seed}", "report.baseline=false")
            head = {"variant": name, "seed": seed}
            yield study.Job(head, self.recipe, keys, f"{name.replace(' ', '_')}/seed-{seed}")

    def measure(self, job: study.Job) -> study.Run:
        """Measures by data set, "rest" those of a point prediction, and the state of each site."""
        place = self.place(job)
        task, _ = study.fit(job, place)
        rest = rest_accuracy(load_network(place), task, self.rest) if self.rest else {}
        file = place / "metrics.json"
        results: Results = read_results(file) if file.exists() else evaluate(task, place)
        health: dict[str, dict[str, float]] = {}
        for site in results.health:
            values = {name: getattr(site, name) for name in HEALTH}
            health[site.site] = {name: value for name, value in values.items() if value is not None}
        points = {"rest": {"accuracy": rest["accuracy"]}} if rest else {}
        return {"scores": scores(results) | points, "health": health, "rest_texts": rest.get("texts", 0)}

    def write(self, content: study.Content, run: study.Run) -> study.Content:
        runs = [*content["runs"], run]
        written = {name: value for name, value in content.items() if name != "runs"}
        study.write_json(written | {"variants": summarise(runs)}, self.folder / "study.json")
        return {**content, "runs": runs}

    def said(self, run: study.Run) -> str:
        return f"accuracy {run['scores']['test']['accuracy']:.4f}"

    def main(self) -> study.Content:
        """Prints the table of all runs."""
        content = super().main()
        Console(width=120).print(table(summarise(content["runs"])))
        return content


STUDY = SentimentStudy
