"""Attention methods on citation graphs over seeds, paired with the deterministic network of the same seed.

    PROBATTN_DATA=/data python tests/benchmarks/study.py graph --seeds 5
    PROBATTN_DATA=/data python tests/benchmarks/study.py graph --graphs pubmed --variants deterministic,gan,ct

Each variant overrides keys of a graph's recipe. What is in the output file already is not run again. The tables of
docs/concepts/graph_attention.md are made of that file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import study
import torch
import typer

from probattn.inference import posterior_expectation, posterior_predict
from probattn.models.graph import NodeClassifier, measure_attention
from probattn.tasks import Graphs, load_task
from probattn.tasks.run import package_versions

RECIPES = {name: f"{name}_deterministic" for name in ("cora", "citeseer", "pubmed")}
VARIANTS: dict[str, list[str]] = {
    "deterministic": [],
    "gan": ["alignment.method=gan"],
    "ct": ["alignment.method=ct"],
    "ot": ["alignment.method=ot"],
    "mmd": ["alignment.method=mmd"],
    "bam": ["attention.method=bam", "attention.concentration=10.0"],
    "babn": ["attention.method=babn"],
}


def measure(model: NodeClassifier, task: Graphs) -> dict[str, Any]:
    """Test and validation accuracy, likelihood, and what attention looks like."""
    graph, recipe = task.graph, task.recipe
    found: dict[str, Any] = {}
    for role in ("test", "validation"):
        rows = graph.rows(role)
        logits = posterior_expectation(model, {"nodes": rows["nodes"]})
        found[f"{role}_accuracy"] = float((logits.argmax(dim=-1) == rows["labels"]).double().mean())
        found[f"{role}_nll"] = float(torch.nn.functional.cross_entropy(logits, rows["labels"]))
    if recipe.attention.build() is not None:
        rows = graph.rows("test")
        options = recipe.prediction
        drawn = posterior_predict(model, rows, options.num_samples, seed=options.seed, chunk_size=1)
        mean = drawn.mean_probabilities
        found["draws_accuracy"] = float((mean.argmax(dim=-1) == rows["labels"]).double().mean())
        found["draws_nll"] = float(torch.nn.functional.nll_loss(mean.log(), rows["labels"]))
    layers = measure_attention(model.net, model.features, model.edges)
    return found | {"layers": [asdict(layer) for layer in layers]}


@dataclass(kw_only=True)
class GraphStudy(study.FileStudy):
    """Variants of graphs' recipes."""

    graphs: study.Names = "cora"
    variants: study.Names = None
    seeds: study.Seeds = 5
    output: study.Output = study.DATA / "graphs.json"
    set_: study.Keys = None

    words = "{graph} {variant} {seed}"

    def __post_init__(self) -> None:
        self.names = (
            study.chosen("graphs", self.graphs, RECIPES),
            study.chosen("variants", self.variants, VARIANTS),
        )

    def begin(self) -> study.Content:
        """What the file holds, or an empty study; runs with other overrides are refused."""
        if not self.output.exists():
            return {"set": self.overrides, "versions": package_versions(), "runs": []}
        content: study.Content = study.read_json(self.output)
        if content["set"] != self.overrides:
            raise typer.BadParameter(
                f"{self.output} holds runs with --set {content['set']}; use another --output"
            )
        return content

    def jobs(self) -> Iterator[study.Job]:
        """Graph by graph and seed by seed."""
        graphs, variants = self.names
        for graph, seed, variant in product(graphs, range(self.seeds), variants):
            keys = (*VARIANTS[variant], *self.overrides, f"training.seed={seed}", "training.device=cpu")
            yield study.Job({"graph": graph, "variant": variant, "seed": seed}, RECIPES[graph], keys)

    def measure(self, job: study.Job) -> study.Run:
        """Trains one variant with one seed and measures it."""
        task = load_task(job.recipe, job.keys)
        assert isinstance(task, Graphs)
        model = task.program()
        started = time.process_time()
        result = task.fit(model, quiet=True)
        spent = round(time.process_time() - started, 1)
        took = {"steps": result.step, "best_step": result.best_step, "cpu_seconds": spent}
        return took | measure(model, task)

    def order(self, run: study.Run) -> tuple[Any, ...]:
        return run["graph"], run["variant"], run["seed"]

    def said(self, run: study.Run) -> str:
        return f"{run['test_accuracy']:.3f}, {run['steps']} steps"


STUDY = GraphStudy
