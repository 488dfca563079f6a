"""Latent attention without training, beside one pass and a temperature, on networks of a comparison.

    PROBATTN_DATA=/data python tests/benchmarks/training_free_study.py runs/particles/*/deterministic/seed-*

The networks are the deterministic ones of `study.py methods --group particles`. Validation texts choose the
concentration (`probattn.training_free`) and the temperature; test and out-of-domain texts measure.
docs/data/training_free.json has the figures, a row a network, and is written after each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from study import DATA

from probattn import posterior_predict, training_free
from probattn.comparison.variants import figures
from probattn.files.durable import write_atomically
from probattn.metrics.functional import best_temperature, ood_auroc
from probattn.tasks import run_task


@torch.no_grad()
def predicted(net: Any, batches: list[dict[str, Any]], samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of one pass or, of samples, logarithms of mean probabilities; and mutual information."""
    if not samples:
        logits = torch.cat([net(**batch).logits for batch in batches]).double()
        return logits, torch.zeros(len(logits))
    drawn = [posterior_predict(net, batch, samples, seed=(1, number)) for number, batch in enumerate(batches)]
    means = torch.cat([item.mean_probabilities for item in drawn]).double()
    return means.log(), torch.cat([item.mutual_information for item in drawn])


def measured(run: Path, samples: int, tolerance: float) -> dict[str, Any]:
    """The figures of one network by what it predicts with."""
    task: Any = run_task(run)
    network = task.network(run)
    net, size = network.net.eval(), task.recipe.prediction.batch_size
    sets = {"validation": task.texts.validation, **task.measured()}
    inputs, labels = {}, {}
    for role in sets.keys() & {"validation", "test", "out_of_domain"}:
        texts, form = sets[role].texts, {"max_length": task.recipe.data.max_length, "return_tensors": "pt"}
        coded = [
            network.codec(list(texts[start : start + size]), truncation=True, padding=True, **form)
            for start in range(0, len(texts), size)
        ]
        inputs[role] = [{name: item[name] for name in ("input_ids", "attention_mask")} for item in coded]
        if sets[role].labels is not None and role != "out_of_domain":
            labels[role] = torch.tensor(sets[role].labels)
    plain = {role: predicted(net, inputs[role], 0)[0] for role in inputs}
    temperature = best_temperature(plain["validation"], labels["validation"])
    cooled = {role: value / temperature for role, value in plain.items()}
    parts = labels["validation"].split(size)
    batches = [{**batch, "labels": part} for batch, part in zip(inputs["validation"], parts, strict=True)]
    choice = training_free(net, batches, tolerance=tolerance)
    latent = {role: predicted(net, inputs[role], samples) for role in inputs}
    ways = {"one pass": plain, "temperature": cooled}
    ways["training-free"] = {role: value[0] for role, value in latent.items()}
    values = {
        name: figures({role: logits.softmax(dim=-1) for role, logits in way.items()}, labels, 0.05)
        for name, way in ways.items()
    }
    if "out_of_domain" in latent:
        scores = ood_auroc(latent["test"][1], latent["out_of_domain"][1])
        values["training-free"]["auroc_mutual_information"] = float(scores)
    return {
        "data": task.recipe.data.train.source,
        "seed": task.recipe.training.seed,
        "concentration": choice.concentration,
        "within_tolerance": choice.within_tolerance,
        "temperature": float(temperature),
        "values": values,
    }


def main(
    runs: list[Path],
    samples: Annotated[int, typer.Option(help="Posterior samples of a prediction.")] = 20,
    tolerance: Annotated[float, typer.Option(help="Of the validation loss, nats.")] = 0.01,
    output: Annotated[Path, typer.Option(help="The file of results.")] = DATA / "training_free.json",
) -> None:
    """Measures each network that the file does not have yet."""
    rows = json.loads(output.read_text("utf-8"))["runs"] if output.exists() else []
    for run in runs:
        task: Any = run_task(run)
        head = {"data": task.recipe.data.train.source, "seed": task.recipe.training.seed}
        if any(head.items() <= row.items() for row in rows):
            continue
        rows.append(measured(run, samples, tolerance))
        print(json.dumps(rows[-1]), flush=True)
        rows.sort(key=lambda row: (row["data"], row["seed"]))
        content = {"samples": samples, "tolerance": tolerance, "runs": rows}
        write_atomically(output, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    typer.run(main)
