"""How far alignment brings queries and keys together on MRPC, and what it does to accuracy, over seeds.

    PROBATTN_DATA=/data python tests/benchmarks/alignment_study.py runs/alignment --seeds 5

Trained for every seed: soft attention, and each alignment at its recommended weight; for the first seed also each
alignment at other weights, and alone (without the likelihood, at a high learning rate). Bandwidths are those of the
soft network of the same seed. A run that is finished is not run again and one that was interrupted is resumed, so the
study can be stopped at any time. The tables of docs/concepts/paraphrases.md are made of the file that it writes.

Runs start from the pretrained network, or with `--start` from the soft networks of an earlier study, seed by seed:
where a short run ends before accuracy has settled, that is what makes small differences visible.

    python tests/benchmarks/alignment_study.py runs/first --seeds 5 --methods '' --output runs/first.json
    python tests/benchmarks/alignment_study.py runs/alignment --seeds 5 --start runs/first/soft/weight-0
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
import typer
from torch.utils.data import DataLoader

from probattn.inference import AttentionELBO, AttentionGuide, OptimizerOptions, posterior_expectation
from probattn.inference.report import gather, head_bandwidths, head_distances
from probattn.inference.report.columns import class_measure
from probattn.metrics.functional import mean_interval
from probattn.models import inspect
from probattn.recipes import load_recipe
from probattn.tasks import Classification, Network, load_network, train
from probattn.tasks.run import package_versions
from probattn.tasks.task import MODEL, RECIPE

SOFT = "soft"
METHODS = ("gan", "ot", "ct", "mmd")
REDUCTION = "mean"
"""Weights count as in the release of Zhang et al. 2021: over heads and layers the divergence is averaged."""
OPTIONS: Mapping[str, Sequence[str]] = MappingProxyType({"ot": ("alignment.sweeps=0",)})
"""Keys of the recipe that a method changes: transport is solved at its fastest."""
RECOMMENDED: Mapping[str, float] = MappingProxyType({"gan": 0.01, "ot": 0.001, "ct": 0.01, "mmd": 0.01})
"""Weights by method. Transport costs are squared distances, which at equal weight count some twenty times as much."""
SWEEP = (0.01, 0.1, 1.0)
"""Weights for the first seed."""

DISTANCES = ("mmd", "mmd_centred")
MEANS = ("query_norm", "key_norm", "auc", "auc_centred")
OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "data" / "alignment.json"
CLIP = 1.0

Kind = Literal["before", "start", "tuned", "alone"]
Run = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One network to train and measure.

    Attributes:
        kind: "before" is the pretrained network as it is, "start" the network that fine-tuning starts from if that is
            another, "tuned" is fine-tuned, "alone" is the pretrained network aligned and nothing else.
        method: "soft" or an alignment.
        weight: of the alignment; 0 without.
        seed: of the run.
    """

    kind: Kind
    method: str
    weight: float
    seed: int

    @property
    def folder(self) -> str:
        """Where it lies in the study's folder."""
        name = self.method if self.kind == "tuned" else f"{self.kind}-{self.method}"
        return f"{name}/weight-{self.weight:g}/seed-{self.seed}"

    @property
    def overrides(self) -> list[str]:
        """Keys of the recipe that it changes."""
        keys = [f"training.seed={self.seed}", "report.baseline=false"]
        if self.method == SOFT:
            return [*keys, "alignment=null"]
        options = {"method": self.method, "weight": self.weight, "reduction": REDUCTION}
        keys += [f"alignment.{name}={value}" for name, value in options.items()]
        return [*keys, *OPTIONS.get(self.method, ())]


@dataclass(frozen=True)
class AloneOptions:
    """How alignment is trained without a likelihood.

    Attributes:
        steps: updates.
        learning_rate: of the network, far above that of fine-tuning.
    """

    steps: int = 300
    learning_rate: float = 1e-3


def jobs(seeds: int, methods: Sequence[str], *, start: bool = False) -> list[Job]:
    """What is to be done, the soft network of a seed before what is compared with it."""
    found = []
    for seed in range(seeds):
        found += [Job("tuned", SOFT, 0.0, seed), Job("before", SOFT, 0.0, seed)]
        found += [Job("start", SOFT, 0.0, seed)] if start else []
        found += [Job("tuned", method, RECOMMENDED[method], seed) for method in methods]
        if seed == 0:
            others = [
                (method, weight) for method in methods for weight in SWEEP if weight != RECOMMENDED[method]
            ]
            found += [Job("tuned", method, weight, seed) for method, weight in others]
            found += [Job("alone", method, 1.0, seed) for method in methods]
    return found


def run_one(
    job: Job,
    recipe_name: str,
    overrides: list[str],
    folder: Path,
    alone: AloneOptions,
    start: Path | None = None,
) -> Run:
    """Trains and measures one network, or reads what is there."""
    place = folder / job.folder
    file = place / "measured.json"
    if file.exists():
        found: Run = json.loads(file.read_text(encoding="utf-8"))
        return found
    network = []
    if start is not None and job.kind in ("start", "tuned"):
        network = [f"network.name={(start / f'seed-{job.seed}' / MODEL).absolute()}"]
    recipe = load_recipe(recipe_name, [*overrides, *network, *job.overrides])
    task = Classification(recipe)
    started, seconds = time.monotonic(), 0.0
    if job.kind == "tuned":
        if not (place / MODEL).is_dir():
            results = train(task, place, resume=(place / RECIPE).exists(), quiet=True)
            seconds = results["model"].seconds
        trained = load_network(place)
    else:
        model = task.program()
        if job.kind == "alone":
            align_alone(model, task, alone)
            seconds = time.monotonic() - started
        trained = Network(model.eval(), place, "aligned", task.data.tokenizer)
    place.mkdir(parents=True, exist_ok=True)
    found = asdict(job) | {"seconds": round(seconds, 1)}
    found |= measure(trained, task, folder / Job("tuned", SOFT, 0.0, job.seed).folder)
    if job.kind in ("start", "tuned"):
        found |= scores(trained, task)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def align_alone(model: Any, task: Classification, options: AloneOptions) -> None:
    """Trains a network on the factors of its alignment and nothing else; the labels are not looked at."""
    torch.manual_seed(task.recipe.training.seed)
    rates = OptimizerOptions(learning_rate=options.learning_rate, weight_decay=0.0)
    optimizer = rates.build(rates.groups(model))
    module = AttentionELBO()(model, AttentionGuide(model))
    model.train()
    for batch in islice(_endless(task), options.steps):
        optimizer.zero_grad()
        (-module(batch).factors).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()


def _endless(task: Classification) -> Iterator[dict[str, torch.Tensor]]:
    loader = DataLoader(
        task.data.train,
        batch_size=task.recipe.training.batch_size,
        shuffle=True,
        collate_fn=task.data.collate,
        generator=torch.Generator().manual_seed(task.recipe.training.seed),
    )
    while True:
        yield from loader


def measure(trained: Network[Any], task: Classification, soft: Path) -> dict[str, float]:
    """Distances of queries and keys over test texts, with the bandwidths of the soft network, made where it is."""
    texts = task.texts.test.take(task.recipe.report.alignment_texts)
    samples = gather(trained.captured(task.batches(trained, texts), inspect(trained.net)))
    file = soft / "bandwidths.json"
    if not file.exists():
        made = {name: head_bandwidths(sample).tolist() for name, sample in samples.items()}
        file.write_text(json.dumps(made) + "\n", encoding="utf-8")
    bandwidths = json.loads(file.read_text(encoding="utf-8"))
    heads: dict[str, list[float]] = {name: [] for name in (*DISTANCES, *MEANS)}
    for name, sample in samples.items():
        found = head_distances(sample, torch.tensor(bandwidths[name]))
        for measured, values in heads.items():
            values.extend(getattr(found, measured).tolist())
    return {name: sum(heads[name]) for name in DISTANCES} | {
        name: statistics.fmean(heads[name]) for name in MEANS
    }


def scores(trained: Network[Any], task: Classification) -> dict[str, float]:
    """Accuracy and F1 on the test texts."""
    data = task.texts.test
    rows = data.rows(data.shortest_first())
    assert rows.labels is not None
    labels = torch.tensor(rows.labels)
    guesses = [
        posterior_expectation(
            trained.program, {name: values for name, values in batch.items() if name != "labels"}
        ).argmax(dim=-1)
        for batch in task.batches(trained, rows)
    ]
    predicted = torch.cat(guesses)
    return {
        "accuracy": (predicted == labels).double().mean().item(),
        "f1": class_measure("f1", predicted, labels, len(data.label_names)),
    }


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Means over seeds, differences to the soft network of the same seed, the sweep, and alignment alone.

    Every ratio is that of the soft (or, for alignment alone, the pretrained) network's discrepancy to the run's.
    """
    by_job = {(run["kind"], run["method"], run["weight"], run["seed"]): run for run in runs}
    main: dict[str, Any] = {}
    for kind, method, weight in dict.fromkeys((run["kind"], run["method"], run["weight"]) for run in runs):
        if kind == "alone" or (method != SOFT and weight != RECOMMENDED[method]):
            continue
        own = [run for run in runs if (run["kind"], run["method"], run["weight"]) == (kind, method, weight)]
        names = [name for name in (*DISTANCES, *MEANS, "accuracy", "f1") if name in own[0]]
        row: dict[str, Any] = {name: mean_interval(run[name] for run in own)._asdict() for name in names}
        soft = [by_job.get(("tuned", SOFT, 0.0, run["seed"])) for run in own]
        pairs = [(run, base) for run, base in zip(own, soft, strict=True) if base is not None]
        if pairs and (kind, method) != ("tuned", SOFT):
            compared = [name for name in ("accuracy", "f1") if name in own[0]]
            row["difference"] = {
                name: mean_interval(run[name] - base[name] for run, base in pairs)._asdict()
                for name in compared
            }
            row["ratio"] = {
                name: mean_interval(base[name] / run[name] for run, base in pairs if run[name] > 0)._asdict()
                for name in DISTANCES
                if any(run[name] > 0 for run, _ in pairs)
            }
        main[method if kind == "tuned" else kind] = row
    return {
        "main": main,
        "sweep": [run for run in runs if run["kind"] == "tuned" and run["seed"] == 0],
        "alone": [run for run in runs if run["kind"] in ("alone", "before") and run["seed"] == 0],
    }


def write(runs: Sequence[Run], setting: Mapping[str, Any], output: Path) -> None:
    """Writes settings, runs and their summary, from which the documentation's tables are made."""
    output.parent.mkdir(parents=True, exist_ok=True)
    content = {"setting": setting, "runs": runs, "summary": summarise(runs)}
    output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main(
    folder: Annotated[Path, typer.Argument(help="Where the runs go.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 5,
    methods: Annotated[str, typer.Option(help="Alignments, separated by commas.")] = ",".join(METHODS),
    recipe: Annotated[str, typer.Option(help="Recipe that the runs change.")] = "mrpc_soft",
    start: Annotated[
        Path | None,
        typer.Option(help="Folder of the runs seed-0, seed-1, ... whose networks runs start from."),
    ] = None,
    output: Annotated[Path, typer.Option(help="The file of results.")] = OUTPUT,
    alone_steps: Annotated[int, typer.Option(min=1, help="Updates of alignment alone.")] = AloneOptions.steps,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipe.")] = None,
) -> None:
    """Runs what is missing, seed by seed, and writes the results after each run."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise typer.BadParameter(f"expected some of {', '.join(METHODS)}, got {unknown[0]!r}")
    overrides, alone = list(set_ or []), AloneOptions(steps=alone_steps)
    plain = load_recipe(recipe, overrides)
    setting = {
        "recipe": recipe,
        "overrides": overrides,
        "texts": plain.report.alignment_texts,
        "recommended": {name: RECOMMENDED[name] for name in names},
        "reduction": REDUCTION,
        "options": {name: list(OPTIONS.get(name, ())) for name in names},
        "alone": asdict(alone),
        "start": None if start is None else _training(start / "seed-0" / RECIPE),
        "versions": package_versions(),
    }
    runs: list[Run] = []
    for job in jobs(seeds, names, start=start is not None):
        runs.append(run_one(job, recipe, overrides, folder, alone, start))
        write(runs, setting, output)
        last = runs[-1]
        accuracy = f", accuracy {last['accuracy']:.4f}" if "accuracy" in last else ""
        typer.echo(f"{job.folder}: MMD {last['mmd']:.4f} raw, {last['mmd_centred']:.4f} centred{accuracy}")


def _training(recipe: Path) -> dict[str, Any]:
    """How the networks were trained that runs start from."""
    training = load_recipe(str(recipe)).training
    return {
        name: getattr(training, name)
        for name in ("optimizer", "steps", "epochs", "batch_size", "learning_rate")
    }


if __name__ == "__main__":
    typer.run(main)
