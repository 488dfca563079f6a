"""What repulsion does to heads and to accuracy, over seeds: the self-attentive sentence classifier, and a Transformer.

    PROBATTN_DATA=/data python tests/benchmarks/study.py repulsion runs/repulsion --seeds 5

Trained for every seed and subject (a network and its data): the network as it is, and with each method. The two with
noise have a temperature and the two penalties a weight, which is chosen first for each subject: of `--temperatures` or
`--weights` the one with the greatest validation likelihood after training, a mean over `--tuning-seeds` seeds that are
none of those measured. Test data have no part in that.

Networks or their training are smaller than the recipes' (`SUBJECTS`); `--full` takes the recipes as they are. With
`--finished` nothing is trained. It writes docs/data/repulsion.json, and with `--add` leaves there what is of other
subjects or methods:

    python tests/benchmarks/study.py repulsion runs/repulsion --add --subjects trec,sst2 --methods spos,sgld --seeds 5
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any

import study
import torch
import typer

from probattn.data import TextDataset
from probattn.metrics.functional import calibration_error, entropy, ood_auroc, overconfidence_error
from probattn.models import head_redundancy, inspect
from probattn.models.hosts.methods import head_lengths
from probattn.report import site_heads
from probattn.tasks import Classification, Network, load_network

PLAIN = "plain"


@dataclass(frozen=True)
class Subject:
    """What is trained: a recipe, keys that make it small for two cores, methods that are another one here."""

    recipe: str
    reduced: tuple[str, ...]
    without: tuple[str, ...] = ()


SMALL_CLASSIFIER = (
    "network.config={hidden_size: 64, attention_size: 64, num_attention_heads: 30, classifier_size: 200}",
)
SUBJECTS: Mapping[str, Subject] = MappingProxyType(
    {
        "trec": Subject("trec_self_attentive", (*SMALL_CLASSIFIER, "data.out_of_domain=sst2")),
        "sst2": Subject(
            "sst2_self_attentive", (*SMALL_CLASSIFIER, "data.out_of_domain=trec", "training.epochs=2")
        ),
        "sst2_transformer": Subject(
            "sentiment_repulsive",
            (
                "data.limits={train: 3200, shifted: 2, out_of_domain: 2}",
                "training.epochs=null",
                "training.steps=200",
                "training.batch_size=16",
            ),
            without=("svgd_strong",),
        ),
    }
)
"""By the name that results go by: the first two are the self-attentive classifier, the last is MiniLM."""

METHODS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        PLAIN: ("repulsion=null",),
        "svgd": ("repulsion.sampler=svgd",),
        "svgd_strong": ("repulsion.sampler=svgd", "repulsion.weight=0.01"),
        "spos": ("repulsion.sampler=spos",),
        "sgld": ("repulsion.sampler=sgld",),
        "svgd_normal": ("repulsion.sampler=svgd", "repulsion.prior=1.0"),
        "cosine_penalty": ("repulsion=null", "disagreement={method: parameters, projections: [query]}"),
        "cosine_gradient": ("repulsion.kernel=cosine", "repulsion.offset=0", "repulsion.smoothing=false"),
        "cosine_kernel": ("repulsion.kernel=cosine", "repulsion.offset=0"),
        "frobenius": ("repulsion=null", "disagreement.method=frobenius"),
    }
)
"""Keys of the recipe that each method changes; the first is what all are compared with.

The weight of `svgd_strong` is the paper's, which MiniLM's recipe has. The three with `cosine` are the steps from a
penalty to repulsion of the paper's table 9.
"""

TUNED: Mapping[str, str] = MappingProxyType(
    {
        "spos": "repulsion.temperature",
        "sgld": "repulsion.temperature",
        "cosine_penalty": "disagreement.weight",
        "frobenius": "disagreement.weight",
    }
)
"""The key that is chosen on validation data, by method."""

TUNING_SEED = 100
"""The first seed for that; those of the measured runs are below."""

MASKED = (PLAIN, "svgd")
"""Methods whose first seed is measured without each of its heads, too, and that can have more seeds."""

MASKED_TEXTS = 300
"""Test texts for that."""

VALIDATED = "validated.json"
"""What the folder of a finished run for the choice of a temperature holds."""

MEASURES = ("accuracy", "distance", "relative_distance", "overlap", "cosine", "norm")
CALIBRATION = ("ece", "overconfidence", "ood_entropy", "ood_auroc")
"""Of the form of the paper's figures 4 and 5, in runs that have texts out of domain."""


def job_of(
    subject: str, method: str, seed: int, overrides: Sequence[str], chosen: float | None = None
) -> study.Job:
    """One network, with the temperature or weight of a method that has one."""
    keys, place = [*METHODS[method]], f"{subject}/{method}"
    if chosen is not None:
        keys.append(f"{TUNED[method]}={chosen:g}")
        place += f"/{TUNED[method].rpartition('.')[2]}-{chosen:g}"
    keys += [f"training.seed={seed}", "report.baseline=false", *overrides]
    head = {"subject": subject, "method": method, "seed": seed, "chosen": chosen}
    return study.Job(head, SUBJECTS[subject].recipe, tuple(keys), f"{place}/seed-{seed}")


def measure_job(made: study.Study, job: study.Job) -> study.Run:
    """Trains a network and measures it on the test texts."""
    place = made.place(job)
    task, result = study.fit(job, place)
    trained, test = load_network(place), task.texts.test
    found = {"steps": result.step, "seconds": round(result.seconds, 1), **measure(trained, task, test)}
    if job.head["seed"] == 0 and job.head["method"] in MASKED:
        found["redundancy"] = redundancy(trained, task, test.take(MASKED_TEXTS))
    return found


def measure(trained: Network[Any], task: Classification, data: TextDataset) -> dict[str, float]:
    """Accuracy, and how different the heads are over all texts: means over attention calls; the length of queries."""
    rows = data.rows(data.shortest_first())
    calls = inspect(trained.net)
    captured = trained.captured(task.batches(trained, rows), calls)
    sites = site_heads(captured, trained.key, head_lengths(trained.net, calls))
    found = {
        "distance": [site.distance for site in sites],
        "relative_distance": [site.relative for site in sites],
        "overlap": [site.overlap for site in sites if site.overlap is not None],
        "cosine": [_between(torch.tensor(site.similarity)) for site in sites],
        "norm": [site.lengths["query"] for site in sites],
    }
    probabilities, labels = study.probabilities(trained, task, data), torch.tensor(data.labels)
    row = {"accuracy": (probabilities.argmax(dim=-1) == labels).double().mean().item()}
    row |= {name: statistics.fmean(values) for name, values in found.items()}
    return row | calibration(trained, task, probabilities, labels)


def calibration(
    trained: Network[Any], task: Classification, probabilities: torch.Tensor, labels: torch.Tensor
) -> dict[str, float]:
    """Errors of calibration on the test texts, and entropy, in nats, of predictions of texts out of domain."""
    other = task.measured().get("out_of_domain")
    if other is None:
        return {}
    away = entropy(study.probabilities(trained, task, other))
    return {
        "ece": calibration_error(probabilities, labels).item(),
        "overconfidence": overconfidence_error(probabilities, labels).item(),
        "ood_entropy": away.mean().item(),
        "ood_auroc": ood_auroc(entropy(probabilities), away).item(),
    }


def redundancy(trained: Network[Any], task: Classification, data: TextDataset) -> dict[str, Any]:
    """Accuracy on the texts with all heads, and how far it falls without each, call after call."""
    calls = inspect(trained.net)
    found = head_redundancy(trained.net, lambda: study.accuracy(trained, task, data), calls)
    return {"texts": len(data), "accuracy": found.whole, "drops": [found.drops[call.name] for call in calls]}


def _between(similarity: torch.Tensor) -> float:
    """The mean over pairs of different heads."""
    heads = len(similarity)
    return float(similarity.sum() - similarity.trace()) / (heads * (heads - 1))


def summarise(runs: Sequence[study.Run]) -> study.Content:
    """Means over seeds by subject and method, and differences and ratios to the plain network of the same seed."""
    summary: study.Content = {}
    for subject, method in dict.fromkeys((run["subject"], run["method"]) for run in runs):
        plain = study.by_seed(runs, subject=subject, method=PLAIN)
        own = [run for run in runs if (run["subject"], run["method"]) == (subject, method)]
        known = (*own, *plain.values())
        measures = [name for name in (*MEASURES, *CALIBRATION) if all(name in run for run in known)]
        row = study.means(own, measures)
        if method != PLAIN and plain:
            name = "relative_distance"
            ratio = study.paired(own, plain, lambda run, other, name=name: run[name] / other[name])
            row |= {"difference": study.differences(own, plain, measures), f"{name}_ratio": ratio}
        summary.setdefault(subject, {})[method] = row
    return summary


def reductions(subject: str, full: bool) -> list[str]:
    """Keys that make a subject small, none of them at full size."""
    return [] if full else list(SUBJECTS[subject].reduced)


@dataclass(kw_only=True)
class RepulsionStudy(study.Study):
    """Methods on subjects, after the choice of temperatures and weights."""

    folder: study.Folder
    seeds: study.Seeds = 5
    more: Annotated[int, typer.Option(min=0, help="Further seeds of the network as it is and of SVGD.")] = 0
    subjects: study.Names = None
    methods: study.Names = None
    output: study.Output = study.DATA / "repulsion.json"
    temperatures: Annotated[
        str, typer.Option(help="Of the methods with noise, to choose from, separated by commas.")
    ] = "1,1e-2,1e-4,1e-6"
    weights: Annotated[str, typer.Option(help="Of the penalties, to choose from.")] = "1,1e-1,1e-2,1e-3"
    tuning_seeds: Annotated[int, typer.Option(min=1, help="Seeds for that choice.")] = 2
    full: study.Full = False
    finished: study.Finished = False
    add: Annotated[bool, typer.Option("--add", help="Leave what the file has of others.")] = False
    set_: study.Keys = None

    shown = MEASURES
    measure = measure_job
    summarise = staticmethod(summarise)

    def __post_init__(self) -> None:
        self.names = study.chosen("subjects", self.subjects, SUBJECTS)
        self.kinds = study.chosen("methods", self.methods, METHODS)
        self.keys = {name: [*reductions(name, self.full), *self.overrides] for name in self.names}
        self.chosen: dict[str, dict[str, Any]] = {}
        """Temperatures and weights by subject and method, as :meth:`choose` gives them."""

    def setting(self) -> study.Content:
        return {
            "recipes": {name: SUBJECTS[name].recipe for name in self.names},
            "methods": {name: list(METHODS[name]) for name in self.kinds},
            "overrides": self.keys,
        }

    def begin(self) -> study.Content:
        """Chooses values of :data:`TUNED`; the file keeps what it has of others, and its setting then names these."""
        content = super().begin() | {"choices": {}}
        if self.add:
            content = self.beside(content["setting"])
        for name, method in product(self.names, [kind for kind in self.kinds if kind in TUNED]):
            grid = self.temperatures if TUNED[method] == "repulsion.temperature" else self.weights
            choice = self.choose(name, method, [float(value) for value in grid.split(",")])
            if choice is not None:
                content["choices"].setdefault(name, {})[method] = choice
        self.chosen = content["choices"]
        return content

    def beside(self, setting: Mapping[str, Any]) -> study.Content:
        """What the file holds of other subjects or methods than these, with this setting added to its own."""
        content = study.earlier(self.output, "--add")
        names, kinds = self.names, self.kinds
        content["runs"] = [
            run for run in content["runs"] if not (run["subject"] in names and run["method"] in kinds)
        ]
        for name, choices in content.setdefault("choices", {}).items():
            for kind in kinds if name in names else ():
                choices.pop(kind, None)
        added = content["setting"].setdefault("added", [])
        if (own := {"subjects": names, "methods": kinds}) not in added:
            added.append(own)
        content["setting"] |= {key: content["setting"].get(key, {}) | own for key, own in setting.items()}
        return content

    def choose(self, subject: str, method: str, grid: Sequence[float]) -> study.Content | None:
        """Validation loss and accuracy by value, means over seeds, and the value of the least loss."""
        seeds = [TUNING_SEED + number for number in range(self.tuning_seeds)]
        candidates = []
        for value in grid:
            tried = [job_of(subject, method, seed, self.keys[subject], value) for seed in seeds]
            found = [values for job in tried if (values := self.validated(job)) is not None]
            if len(found) < len(tried):
                return None
            figures = {
                f"validation_{key}": statistics.fmean(one[key] for one in found)
                for key in ("loss", "accuracy")
            }
            candidates.append({"value": value, "seeds": seeds, **figures})
        best = min(candidates, key=lambda one: float(one["validation_loss"]))
        return {"value": best["value"], "candidates": candidates}

    def validated(self, job: study.Job) -> study.Run | None:
        """Trains one network for its validation loss alone, or reads what is there."""
        file = self.place(job) / VALIDATED
        if file.exists() or self.finished:
            return study.read_json(file) if file.exists() else None
        _, result = study.fit(job, self.place(job))
        last = result.validation
        # not the loss, in which a penalty counts by the weight that is to be chosen
        found = {"loss": -float(last["log_likelihood"]), "accuracy": float(last["accuracy"])}
        shown = ", ".join(f"validation {key} {value:.4f}" for key, value in found.items())
        typer.echo(f"{job.folder}: {shown}")
        return study.write_json(found, file)

    def jobs(self) -> Iterator[study.Job]:
        """Seed by seed, so that every method has as many as the others when the study is stopped.

        The methods in :data:`TUNED` for which nothing was chosen are left out.
        """
        first, later = range(self.seeds), range(self.seeds, self.seeds + self.more)
        kept = [method for method in self.kinds if method in MASKED]
        for seed, name, method in (
            *product(first, self.names, self.kinds),
            *product(later, self.names, kept),
        ):
            choice = self.chosen.get(name, {}).get(method)
            if method not in SUBJECTS[name].without and (method not in TUNED or choice is not None):
                yield job_of(name, method, seed, self.keys[name], choice and choice["value"])

    def write(self, content: study.Content, run: study.Run) -> study.Content:
        """Writes the runs in the order of :meth:`jobs`, whenever they were added."""
        places = {name: number for number, name in enumerate((*SUBJECTS, *METHODS))}
        runs = sorted(
            [*content["runs"], run],
            key=lambda run: (run["seed"], places[run["subject"]], places[run["method"]]),
        )
        return super().write({**content, "runs": runs[:-1]}, runs[-1])


STUDY = RepulsionStudy
