"""BLEU of translation networks by what is done to their heads or to their attention, over seeds.

    PROBATTN_DATA=/data python tests/benchmarks/study.py translation heads runs/heads --seeds 3
    PROBATTN_DATA=/data python tests/benchmarks/study.py translation parts runs/parts --seeds 3
    PROBATTN_DATA=/data python tests/benchmarks/study.py translation latent runs/latent --seeds 3
    PROBATTN_DATA=/data python tests/benchmarks/study.py translation longer runs/longer --seeds 3

Trained for every seed: for `heads` the Transformer of a recipe as it is, with heads that repel each other in all layers
and in the first of each stack, and with disagreement regularisation (Table 2's form of An et al. 2020); for `parts` it
with repulsion of one projection, one kind of attention or one layer (Table 8's form); for `latent` the LSTM network
with soft attention, variational attention (Deng et al. 2018) by enumeration and by sampling, and Bayesian attention
modules and belief networks (the table of Zhang et al. 2021); for `longer` that network with soft attention, BAM and
BABN until the validation loss stops. Times are measured after that, except for `longer`, method after method in several
rounds (`translation_times.py`), and kept beside the runs. It writes docs/data/translation.json and, by the names of the
others, docs/data/translation_NAME.json.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import study
import torch
import translation_times
import typer

from probattn.data import PairCollate, SentencePairs, TokenizedPairs
from probattn.metrics.functional import attention_overlap, head_distance
from probattn.models import capture
from probattn.tasks import Network, Translation, load_network, load_task

PLAIN = "plain"
ELBO, WHOLE = "kl_reduction: sum", "training.kl_weight=1"
"""The lower bound of the evidence: with one head, the KL of each query beside the likelihood of its target word."""
METHODS: Mapping[str, Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "heads": {
            PLAIN: ("repulsion=null",),
            "disagreement": ("repulsion=null", "disagreement={method: outputs, weight: 1.0}"),
            "svgd": (),
            "svgd_first": ("repulsion.layers=first",),
        },
        "parts": {
            PLAIN: ("repulsion=null",),
            "all": (),
            **{name: (f"repulsion.projections=[{name}]",) for name in ("query", "key", "value")},
            **{
                name: (f"repulsion.layers={name}",)
                for name in ("encoder", "decoder", "cross", "first", "last")
            },
        },
        "latent": {
            PLAIN: (),
            "va_enumerate": ("attention={method: variational, estimator: enumerate}",),
            "va_sample": ("attention={method: variational, estimator: sample}",),
            "bam": ("attention={method: bam}",),
            "babn": ("attention={method: babn}",),
            "babn_elbo": (f"attention={{method: babn, {ELBO}}}", WHOLE),
            "babn_elbo_strength": (f"attention={{method: babn, {ELBO}, prior_strength: learned}}", WHOLE),
        },
        "longer": {
            PLAIN: (),
            "bam": ("attention={method: bam}",),
            "babn": ("attention={method: babn}",),
        },
    }
)
"""Keys of the recipe that each method of a comparison changes; the others are compared with the first."""

LONGER = "longer"
LATENT = ("latent", LONGER)
"""The comparisons of an LSTM network's attention; the others are of a Transformer's heads."""
RECIPES: Mapping[str, str] = MappingProxyType(
    {name: "multi30k_lstm_reduced" if name in LATENT else "multi30k_reduced" for name in METHODS}
)
SHORT = ("training.steps=1500",)
KEYS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "parts": SHORT,
        LONGER: (
            "training.steps=12000",
            "training.eval_every=500",
            "training.checkpoint_every=500",
            "training.early_stopping={patience: 3}",
        ),
    }
)
"""Keys of the comparisons whose updates are not the recipe's: fewer of many networks, as many as help for `longer`."""
QUALITY = ("bleu", "perplexity", "token_accuracy")
DIFFERENCE = ("distance", "relative_distance", "overlap")
MEASURES: Mapping[str, Sequence[str]] = MappingProxyType(
    {name: QUALITY if name in LATENT else (*QUALITY, *DIFFERENCE) for name in METHODS}
)
SEEN = 200
"""Test pairs over which heads are compared."""

OUTPUTS = {
    name: study.DATA / ("translation.json" if name == "heads" else f"translation_{name}.json")
    for name in METHODS
}


def trained_parameters(task: Translation) -> int:
    """How many numbers are trained: those of the network and, of latent alignments, those of the posterior."""
    model = task.program()
    guide = task.driver_options(model).get("guide")
    parts = (model,) if guide is None else (model, guide)
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


def heads(trained: Network[Any], test: SentencePairs) -> dict[str, float]:
    """How different the heads are: means over attention calls, on the first test pairs."""
    rows = TokenizedPairs(test.rows(range(min(SEEN, len(test)))), trained.codec)
    batch = PairCollate()([rows[row] for row in range(len(rows))])
    inputs = {name: tensor.to(trained.device) for name, tensor in batch.items() if name != "labels"}
    with torch.no_grad():
        calls = capture(trained.net, inputs).values()
    distances = [head_distance(call.output, call.query_valid) for call in calls]
    overlaps = [attention_overlap(call.weights, call.query_valid) for call in calls]
    return {
        "distance": statistics.fmean(found.distance.item() for found in distances),
        "relative_distance": statistics.fmean(found.relative.item() for found in distances),
        "overlap": statistics.fmean(found.item() for found in overlaps),
    }


def summarise(runs: Sequence[study.Run], timed: Mapping[str, Any] | None = None) -> study.Content:
    """Means over seeds by method, differences to the plain network of the same seed, and times where there are."""
    summary: study.Content = {}
    for method in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == method]
        measures = MEASURES[own[0]["comparison"]]
        summary[method] = study.means(own, measures) | {"parameters": own[0]["parameters"]}
        plain = study.by_seed(runs, method=PLAIN)
        if method != PLAIN and plain:
            summary[method]["difference"] = study.differences(own, plain, measures)
        if timed is not None:
            summary[method] |= timed["methods"][method]
    return summary


@dataclass(kw_only=True)
class TranslationStudy(study.Study):
    """A comparison of methods on one recipe."""

    comparison: Annotated[str, typer.Argument(help=f"What is compared: {', '.join(METHODS)}.")]
    folder: study.Folder
    seeds: study.Seeds = 3
    methods: study.Names = None
    recipe: Annotated[
        str | None, typer.Option(help="The recipe; multi30k_small and multi30k_lstm have the full sizes.")
    ] = None
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each method when times are measured.")] = 5
    output: Annotated[Path | None, typer.Option(help="The file of results.")] = None
    set_: study.Keys = None

    summarise = staticmethod(summarise)

    def __post_init__(self) -> None:
        if self.comparison not in METHODS:
            raise typer.BadParameter(
                f"comparison: expected one of {', '.join(METHODS)}, got {self.comparison!r}"
            )
        known = METHODS[self.comparison]
        names = study.chosen("methods", self.methods, known)
        self.changes = {name: known[name] for name in names}
        self.shown = MEASURES[self.comparison]
        self.recipe = self.recipe or RECIPES[self.comparison]
        self.output = self.output or OUTPUTS[self.comparison]
        self.common = [*KEYS.get(self.comparison, ()), *self.overrides]
        if not isinstance(load_task(self.recipe), Translation):
            raise typer.BadParameter(f"recipe: expected one of translation, {self.recipe} is not")

    def setting(self) -> study.Content:
        methods = {name: list(keys) for name, keys in self.changes.items()}
        return {"recipe": self.recipe, "methods": methods, "overrides": self.common}

    def jobs(self) -> Iterator[study.Job]:
        for seed, (method, changes) in product(range(self.seeds), self.changes.items()):
            keys = (*changes, f"training.seed={seed}", "report.baseline=false", *self.common)
            head = {"comparison": self.comparison, "method": method, "seed": seed}
            yield study.Job(head, self.recipe, keys, f"{method}/seed-{seed}")

    def measure(self, job: study.Job) -> study.Run:
        """Quality on the test pairs and, of heads, how different they are."""
        place = self.place(job)
        task, result = study.fit(job, place)
        results = task.evaluate(place)
        (scores,) = results.scores
        found = {
            "steps": result.step,
            "seconds": round(result.seconds, 1),
            "parameters": trained_parameters(task),
            "signature": results.signature,
            **{name: scores.values[name] for name in QUALITY},
            "bleu": 100 * scores.values["bleu"],
        }
        return found | (
            {} if self.comparison in LATENT else heads(load_network(place), task.datasets["test"])
        )

    def main(self) -> study.Content:
        """Adds times of updates to the file after the last run."""
        content = super().main()
        if PLAIN in self.changes and content["runs"] and self.comparison != LONGER:
            summary = summarise(content["runs"], self.times())
            study.write_json({**content, "summary": summary}, self.output)
        return content

    def times(self) -> study.Run:
        """Times of an update, measured or as they stand beside the runs."""
        file = self.folder / "times.json"
        keys = {name: [*own, *self.common] for name, own in self.changes.items()}
        asked = {"recipe": self.recipe, "keys": keys, "rounds": self.rounds}
        if file.exists() and (found := study.read_json(file))["asked"] == asked:
            return found
        timed = translation_times.measure(self.recipe, keys, self.rounds, PLAIN)
        return study.write_json({"asked": asked, **timed}, file)


STUDY = TranslationStudy
