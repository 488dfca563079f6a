"""How far alignment brings queries and keys together on MRPC, and what it does to accuracy, over seeds.

    PROBATTN_DATA=/data python tests/benchmarks/study.py alignment runs/alignment --seeds 5

Trained for every seed: soft attention, and each alignment at its recommended weight; for the first seed also each
alignment at other weights, and alone (without the likelihood, at a high learning rate). Bandwidths are those of the
soft network of the same seed. The tables of docs/concepts/paraphrases.md are made of the file that it writes.

Runs start from the pretrained network, or with `--start` from the soft networks of an earlier study, seed by seed:
where a short run ends before accuracy has settled, that is what makes small differences visible.

    python tests/benchmarks/study.py alignment runs/first --seeds 5 --methods '' --output runs/first.json
    python tests/benchmarks/study.py alignment runs/alignment --seeds 5 --start runs/first/soft/weight-0

`--reduction sum --no-sweep --output docs/data/alignment_sum.json` has the weight of the papers' text.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import study
import torch
import typer
from torch.utils.data import DataLoader

from probattn.inference import AttentionELBO, AttentionGuide, OptimizerOptions
from probattn.models import inspect
from probattn.report import gather, head_bandwidths, head_distances
from probattn.report.columns import class_measure
from probattn.tasks import Classification, Network, load_network, load_task
from probattn.tasks.task import MODEL, RECIPE

SOFT = "soft"
METHODS = ("gan", "ot", "ct", "mmd")
OPTIONS: Mapping[str, Sequence[str]] = MappingProxyType({"ot": ("alignment.sweeps=0",)})
"""Keys of the recipe that a method changes: transport is solved at its fastest."""
RECOMMENDED: Mapping[str, float] = MappingProxyType({"gan": 0.01, "ot": 0.001, "ct": 0.01, "mmd": 0.01})
"""Weights by method. Transport costs are squared distances, which at equal weight count some twenty times as much."""
SUMMED = 0.01
"""Weight of every method where the divergence is summed over heads and layers: that of the papers' text."""
SWEEP = (0.01, 0.1, 1.0)
"""Weights for the first seed."""

DISTANCES = ("mmd", "mmd_centred")
MEANS = ("query_norm", "key_norm", "auc", "auc_centred")
CLIP = 1.0


@dataclass(frozen=True)
class AloneOptions:
    """How alignment is trained without a likelihood; the learning rate is far above that of fine-tuning."""

    steps: int = 300
    learning_rate: float = 1e-3


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
    texts = task.texts.test.take(task.recipe.report.alignment_examples)
    samples = gather(trained.captured(task.batches(trained, texts), inspect(trained.net)))
    file = soft / "bandwidths.json"
    if not file.exists():
        made = {name: head_bandwidths(sample).tolist() for name, sample in samples.items()}
        study.write_json(made, file)
    bandwidths = study.read_json(file)
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
    predicted, labels = study.guessed(trained, task, data.rows(data.shortest_first()))
    return {
        "accuracy": (predicted == labels).double().mean().item(),
        "f1": class_measure("f1", predicted, labels, len(data.label_names)),
    }


def summarise(runs: Sequence[study.Run], weights: Mapping[str, float] = RECOMMENDED) -> study.Content:
    """Means over seeds, differences to the soft network of the same seed, the sweep, and alignment alone.

    Every ratio is that of the soft (or, for alignment alone, the pretrained) network's discrepancy to the run's.
    """
    soft = study.by_seed(runs, kind="tuned", method=SOFT)
    main: study.Content = {}
    for kind, method, weight in dict.fromkeys((run["kind"], run["method"], run["weight"]) for run in runs):
        if kind == "alone" or (method != SOFT and weight != weights.get(method)):
            continue
        own = [*study.by_seed(runs, kind=kind, method=method, weight=weight).values()]
        scored = [name for name in ("accuracy", "f1") if name in own[0]]
        row = study.means(own, (*DISTANCES, *MEANS, *scored))
        if (kind, method) != ("tuned", SOFT) and any(run["seed"] in soft for run in own):
            row["difference"] = study.differences(own, soft, scored)
            ratios = {
                name: study.paired(
                    [run for run in own if run[name] > 0],
                    {seed: base for seed, base in soft.items() if base[name] > 0},
                    lambda run, base, name=name: base[name] / run[name],
                )
                for name in DISTANCES
            }
            row["ratio"] = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        main[method if kind == "tuned" else kind] = row
    return {
        "main": main,
        "sweep": [run for run in runs if run["kind"] == "tuned" and run["seed"] == 0],
        "alone": [run for run in runs if run["kind"] in ("alone", "before") and run["seed"] == 0],
    }


@dataclass(kw_only=True)
class AlignmentStudy(study.Study):
    """Alignments of one recipe.

    A run's kind is "before" for the pretrained network as it is, "start" for the network that fine-tuning starts from
    if that is another, "tuned" for one that is fine-tuned, "alone" for the pretrained network aligned and nothing else.
    """

    folder: study.Folder
    seeds: study.Seeds = 5
    methods: study.Names = None
    recipe: Annotated[str, typer.Option(help="Recipe that the runs change.")] = "mrpc_soft"
    start: Annotated[
        Path | None,
        typer.Option(help="Folder of the runs seed-0, seed-1, ... whose networks runs start from."),
    ] = None
    output: study.Output = study.DATA / "alignment.json"
    reduction: Annotated[
        Literal["mean", "sum"],
        typer.Option(
            help="Of the divergence over heads and layers: as in the release of Zhang et al. 2021, or in their text."
        ),
    ] = "mean"
    sweep: Annotated[bool, typer.Option(help="Whether to take other weights, and alignment alone.")] = True
    alone_steps: Annotated[int, typer.Option(min=1, help="Updates of alignment alone.")] = AloneOptions.steps
    set_: study.Keys = None

    def __post_init__(self) -> None:
        self.names = study.chosen("methods", self.methods, METHODS)
        self.alone = AloneOptions(steps=self.alone_steps)
        self.weights = RECOMMENDED if self.reduction == "mean" else dict.fromkeys(METHODS, SUMMED)

    def summarise(self, runs: Sequence[study.Run]) -> study.Content:
        """Of runs at the weights of this reduction."""
        return summarise(runs, self.weights)

    def setting(self) -> study.Content:
        return {
            "recipe": self.recipe,
            "overrides": self.overrides,
            "texts": load_task(self.recipe, self.overrides).recipe.report.alignment_examples,
            "recommended": {name: self.weights[name] for name in self.names},
            "reduction": self.reduction,
            "options": {name: list(OPTIONS.get(name, ())) for name in self.names},
            "alone": asdict(self.alone),
            "start": None if self.start is None else _training(self.start / "seed-0" / RECIPE),
        }

    def jobs(self) -> Iterator[study.Job]:
        """Seed by seed, the soft network before what is compared with it."""
        for seed in range(self.seeds):
            yield self.job("tuned", SOFT, 0.0, seed)
            yield self.job("before", SOFT, 0.0, seed)
            if self.start is not None:
                yield self.job("start", SOFT, 0.0, seed)
            for method in self.names:
                yield self.job("tuned", method, self.weights[method], seed)
        for method in self.names if self.sweep else ():
            for weight in SWEEP:
                if weight != self.weights[method]:
                    yield self.job("tuned", method, weight, 0)
            yield self.job("alone", method, 1.0, 0)

    def job(self, kind: str, method: str, weight: float, seed: int) -> study.Job:
        """One network."""
        options = {"method": method, "weight": weight, "reduction": self.reduction}
        aligned = [f"alignment.{name}={value}" for name, value in options.items()]
        keys = [*self.overrides, f"training.seed={seed}", "report.baseline=false"]
        keys += ["alignment=null"] if method == SOFT else [*aligned, *OPTIONS.get(method, ())]
        if self.start is not None and kind in ("start", "tuned"):
            keys.append(f"network.name={(self.start / f'seed-{seed}' / MODEL).absolute()}")
        name = method if kind == "tuned" else f"{kind}-{method}"
        head = {"kind": kind, "method": method, "weight": weight, "seed": seed}
        return study.Job(head, self.recipe, tuple(keys), f"{name}/weight-{weight:g}/seed-{seed}")

    def measure(self, job: study.Job) -> study.Run:
        """Distances with the bandwidths of the soft network of the seed and, where it is tuned, accuracy."""
        place, kind, seconds = self.place(job), job.head["kind"], 0.0
        if kind == "tuned":
            task, result = study.fit(job, place)
            trained, seconds = load_network(place), result.seconds
        else:
            task, started = load_task(job.recipe, job.keys), time.monotonic()
            model = task.program()
            if kind == "alone":
                align_alone(model, task, self.alone)
                seconds = time.monotonic() - started
            trained = Network(model.eval(), place, "aligned", task.data.codec)
        soft = self.folder / self.job("tuned", SOFT, 0.0, job.head["seed"]).folder
        found = {"seconds": round(seconds, 1), **measure(trained, task, soft)}
        return found | (scores(trained, task) if kind in ("start", "tuned") else {})

    def said(self, run: study.Run) -> str:
        accuracy = f", accuracy {run['accuracy']:.4f}" if "accuracy" in run else ""
        return f"MMD {run['mmd']:.4f} raw, {run['mmd_centred']:.4f} centred{accuracy}"


def _training(recipe: Path) -> dict[str, Any]:
    """How the networks were trained that runs start from."""
    training = load_task(recipe).recipe.training
    return {
        name: getattr(training, name)
        for name in ("optimizer", "steps", "epochs", "batch_size", "learning_rate")
    }


STUDY = AlignmentStudy
