"""Attention methods on citation graphs over seeds, paired with the deterministic network of the same seed.

    PROBATTN_DATA=/data python tests/benchmarks/graph_study.py --seeds 5
    PROBATTN_DATA=/data python tests/benchmarks/graph_study.py --graphs pubmed --variants deterministic,gan,ct

Each variant overrides keys of a graph's recipe. What is in the output file already is not run again, so the study can
be stopped at any time. The tables of docs/concepts/graph_attention.md are made of that file.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from probattn.inference import posterior_expectation, posterior_predict
from probattn.models.graph import NodeClassifier, measure_attention
from probattn.tasks import Graphs, load_task
from probattn.tasks.run import package_versions

RECIPES = {"cora": "cora_deterministic", "pubmed": "pubmed_deterministic"}
VARIANTS: dict[str, list[str]] = {
    "deterministic": [],
    "gan": ["alignment.method=gan"],
    "ct": ["alignment.method=ct"],
    "ot": ["alignment.method=ot"],
    "mmd": ["alignment.method=mmd"],
    "bam": ["attention.method=bam", "attention.concentration=10.0"],
    "babn": ["attention.method=babn"],
}
OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "data" / "graphs.json"


def run_one(graph: str, variant: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Trains one variant with one seed and measures it."""
    task = load_task(
        RECIPES[graph], [*VARIANTS[variant], *overrides, f"training.seed={seed}", "training.device=cpu"]
    )
    assert isinstance(task, Graphs)
    model = task.program()
    started = time.process_time()
    result = task.fit(model, quiet=True)
    return {
        "graph": graph,
        "variant": variant,
        "seed": seed,
        "steps": result.step,
        "best_step": result.best_step,
        "cpu_seconds": round(time.process_time() - started, 1),
        **measure(model, task),
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


def main(
    graphs: Annotated[str, typer.Option(help="Names, separated by commas.")] = "cora",
    variants: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(VARIANTS),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 5,
    output: Annotated[Path, typer.Option(help="Where the figures go, and are looked for.")] = OUTPUT,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipes.")] = None,
) -> None:
    """Runs what is missing, seed by seed."""
    overrides = set_ or []
    content = read(output, overrides)
    done = {(run["graph"], run["variant"], run["seed"]) for run in content["runs"]}
    chosen_graphs, chosen = _names(graphs, RECIPES), _names(variants, VARIANTS)
    for graph in chosen_graphs:
        for seed in range(seeds):
            for variant in chosen:
                if (graph, variant, seed) in done:
                    continue
                run = run_one(graph, variant, seed, overrides)
                typer.echo(f"{graph} {variant} {seed}: {run['test_accuracy']:.3f}, {run['steps']} steps")
                content = read(output, overrides)  # another process may have written meanwhile
                content["runs"] = sorted(
                    [*content["runs"], run], key=lambda run: (run["graph"], run["variant"], run["seed"])
                )
                output.parent.mkdir(parents=True, exist_ok=True)
                output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read(output: Path, overrides: list[str]) -> dict[str, Any]:
    """What the file holds, or an empty study.

    Raises:
        BadParameter: the file's runs had other overrides.
    """
    if not output.exists():
        return {"set": overrides, "versions": package_versions(), "runs": []}
    content: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    if content["set"] != overrides:
        raise typer.BadParameter(f"{output} holds runs with --set {content['set']}; use another --output")
    return content


def _names(given: str, known: dict[str, Any]) -> list[str]:
    names = [name.strip() for name in given.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"expected some of {', '.join(known)}, got {unknown[0]!r}")
    return names


if __name__ == "__main__":
    typer.run(main)
