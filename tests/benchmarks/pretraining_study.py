"""ELECTRA pre-trained with and without heads that repel each other, and what fine-tuning makes of it.

    PROBATTN_DATA=/data python tests/benchmarks/study.py pretraining runs/pretraining --seeds 3

The comparison of table 3 of An et al. (EMNLP 2020), at the size of a recipe: the discriminator's first layer as it is,
and repulsive with two weights. Each discriminator is then fine-tuned, without repulsion, and beside them the same
network from random weights. Everything else, the vocabulary too, is the same for all of a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import study
import typer

from probattn.models import AttentionCalls, inspect
from probattn.report import site_heads
from probattn.tasks import load_network, load_task
from probattn.tasks.networks import quiet_loading
from probattn.tasks.task import MODEL

PLAIN, NOTHING = "plain", "nothing"
VARIANTS: Mapping[str, Sequence[str]] = {
    PLAIN: ("repulsion=null",),
    "weak": ("repulsion={layers: [0], sampler: svgd, step_size: 0.01, weight: 1.0e-3}",),
    "paper": ("repulsion={layers: [0], sampler: svgd, step_size: 0.01, weight: 0.1}",),
    NOTHING: ("repulsion=null",),
}
"""Keys of the recipe that each variant changes; the last is not pre-trained."""
DETECTION = ("accuracy", "margin", "majority", "balanced_accuracy", "auroc", "nll")
HEADS = ("distance", "relative", "overlap")
MEASURES = (*DETECTION, "generator_accuracy", "generator_perplexity", *HEADS)
CLASSIFIER = """data: {{train: {train}, limits: {{train: {labels}}}, max_length: 64}}
network: {{name: {network}}}
attention: {{method: deterministic}}
training: {{batch_size: 32, steps: {steps}, learning_rate: {rate!r}, seed: {seed}}}
"""


@dataclass(kw_only=True)
class PretrainingStudy(study.VariantStudy):
    """Variants of one recipe of pre-training, each fine-tuned afterwards."""

    recipe: Annotated[
        str, typer.Option(help="Recipe that the variants change; electra_small is the full size.")
    ] = "electra_reduced"
    tasks: Annotated[
        str,
        typer.Option(
            help="Data sets of fine-tuning, names or files, separated by commas; NAME:N for N labelled texts of it."
        ),
    ] = "sst2"
    steps: Annotated[int, typer.Option(min=1, help="Updates of fine-tuning.")] = 400
    rates: Annotated[
        str, typer.Option(help="Learning rates of fine-tuning; that of the best validation accuracy counts.")
    ] = "2e-4,5e-4,1e-3,2e-3"
    output: study.Output = study.DATA / "pretraining.json"

    known = VARIANTS
    common = ("report.baseline=false", "report.samples=0", "report.masked_examples=0", "report.resamples=100")
    measures = MEASURES

    @property
    def shown(self) -> Sequence[str]:
        """Detection, and the accuracy of each data set of fine-tuning."""
        return ("margin", *(f"{name}_accuracy" for name in self.labelled()))

    def labelled(self) -> dict[str, tuple[str, str]]:
        """Of each data set of fine-tuning by name, its source and how many labelled texts of it, or null for all."""
        found = {}
        for entry in self.tasks.split(","):
            source, _, number = entry.rpartition(":")
            source, labels = (source, number) if source and number.isdigit() else (entry, "null")
            found[Path(source).stem + f"-{labels}" * (labels != "null")] = source, labels
        return found

    @classmethod
    def figures(cls, runs: Sequence[study.Run]) -> Sequence[str]:
        """The measures, and the accuracy of each data set of fine-tuning."""
        return list(
            dict.fromkeys((*MEASURES, *(name for run in runs for name in run if name.endswith("_accuracy"))))
        )

    def setting(self) -> study.Content:
        """The recipe, the keys that runs change, and the settings of fine-tuning."""
        return {
            **super().setting(),
            "fine_tuning": {"tasks": self.tasks, "steps": self.steps, "rates": self.rates},
        }

    def measure(self, job: study.Job) -> study.Run:
        """Pre-trains, measures, and fine-tunes."""
        place = self.place(job)
        if job.head["variant"] == NOTHING:
            return self.fine_tuned(start(job, place / "start"), place / "tuned", job)
        task, trained = study.fit(job, place)
        (scores,) = task.evaluate(place).scores
        return {
            "steps": trained.step,
            "seconds": round(trained.seconds, 1),
            **scores.values,
            **heads(task, place),
            **self.fine_tuned(place / MODEL, place / "tuned", job),
        }

    def fine_tuned(self, network: Path, place: Path, job: study.Job) -> dict[str, float]:
        """For each data set the test accuracy of a classifier that begins with a network.

        Of the learning rates the one with the best validation accuracy is taken, the first of equal ones.
        """
        found = {}
        for (name, (train, labels)), given in product(self.labelled().items(), self.rates.split(",")):
            rate = float(given)
            recipe = place / f"{name}-{rate:g}.yaml"
            content = {"train": train, "labels": labels, "network": network.absolute()}
            content |= {"steps": self.steps, "rate": rate}
            recipe.parent.mkdir(parents=True, exist_ok=True)
            recipe.write_text(CLASSIFIER.format(**content, seed=job.head["seed"]), encoding="utf-8")
            task, _ = study.fit(study.Job({}, str(recipe)), recipe.with_suffix(""))
            classifier = load_network(recipe.with_suffix(""))
            chosen = study.accuracy(classifier, task, task.texts.validation)
            if chosen > found.get(f"{name}_validation", -1):
                test = study.accuracy(classifier, task, task.texts.test)
                found |= {f"{name}_accuracy": test, f"{name}_validation": chosen, f"{name}_rate": rate}
        return found


def start(job: study.Job, folder: Path) -> Path:
    """A folder with the recipe's discriminator before any training, and its tokenizer."""
    task = load_task(job.recipe, job.keys)
    net, _ = task.untrained(task.tokenizer)
    with quiet_loading():
        net.save_pretrained(folder)
    task.tokenizer.save_pretrained(folder)
    return folder


def heads(task: Any, place: Path) -> dict[str, float]:
    """How different the heads of the discriminator's first layer are, over some test passages."""
    trained = load_network(place)
    first = AttentionCalls(call for call in inspect(trained.net) if call.layer == 0)
    rows = task.datasets["test"][: task.recipe.report.head_examples]
    if not rows:
        return {}
    inputs = (batch.inputs for batch in task.replaced(trained, rows))
    (site,) = site_heads(trained.captured(inputs, first), trained.key, {})
    return {name: getattr(site, name) for name in HEADS}


STUDY = PretrainingStudy
