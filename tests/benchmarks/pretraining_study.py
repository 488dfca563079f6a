"""ELECTRA pre-trained with and without heads that repel each other, and what fine-tuning makes of it.

    PROBATTN_DATA=/data python tests/benchmarks/study.py pretraining runs/pretraining --seeds 3

The comparison of table 3 of An et al. (EMNLP 2020), at the size of a recipe: the discriminator's first layer as it is,
and repulsive with two weights. Each discriminator is then fine-tuned on SST-2, without repulsion, and beside them the
same network from random weights. Everything else, the vocabulary too, is the same for all of a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import study
import typer
from rich.table import Table

from probattn.inference.report import site_heads
from probattn.models import AttentionCalls, inspect
from probattn.tasks import load_network, load_task
from probattn.tasks.programs import quiet_loading
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
FINE_TUNED = "sst2_accuracy"
MEASURES = (*DETECTION, "generator_accuracy", "generator_perplexity", *HEADS, FINE_TUNED)
CLASSIFIER = """data: {train: sst2, max_length: 64}
attention: {method: deterministic}
training: {batch_size: 32}
"""


def table(summary: Mapping[str, Any]) -> Table:
    """A row a measure, a column a variant: means over seeds."""
    shown = Table("measure", *summary)
    for name in MEASURES:
        means = [values.get(name, {}).get("mean") for values in summary.values()]
        shown.add_row(name, *("" if mean is None else f"{mean:.4f}" for mean in means))
    return shown


@dataclass(kw_only=True)
class PretrainingStudy(study.VariantStudy):
    """Variants of one recipe of pre-training, each fine-tuned afterwards."""

    recipe: Annotated[
        str, typer.Option(help="Recipe that the variants change; electra_small is the full size.")
    ] = "electra_reduced"
    steps: Annotated[int, typer.Option(min=1, help="Updates of fine-tuning.")] = 400
    rate: Annotated[float, typer.Option(help="Learning rate of fine-tuning.")] = 5e-4
    classifier: Annotated[
        Path | None,
        typer.Option(
            help="A recipe of texts instead of SST-2, of which network, updates and rate are replaced."
        ),
    ] = None
    output: study.Output = study.DATA / "pretraining.json"

    shown = (FINE_TUNED,)
    known = VARIANTS
    common = ("report.baseline=false", "report.samples=0", "report.masked_texts=0", "report.resamples=100")
    measures = MEASURES
    table = staticmethod(table)

    def setting(self) -> study.Content:
        """The recipe, the keys that runs change, and the settings of fine-tuning."""
        return {**super().setting(), "fine_tuning": {"steps": self.steps, "rate": self.rate}}

    def measure(self, job: study.Job) -> study.Run:
        """Pre-trains, measures, and fine-tunes."""
        place = self.place(job)
        if job.head["variant"] == NOTHING:
            return {FINE_TUNED: self.fine_tuned(start(job, place / "start"), place / "tuned", job)}
        task, trained = study.fit(job, place)
        (scores,) = task.evaluate(place).scores
        return {
            "steps": trained.step,
            "seconds": round(trained.seconds, 1),
            **scores.values,
            **heads(task, place),
            FINE_TUNED: self.fine_tuned(place / MODEL, place / "tuned", job),
        }

    def fine_tuned(self, network: Path, place: Path, job: study.Job) -> float:
        """Test accuracy of a classifier that begins with a network."""
        recipe = self.classifier
        if recipe is None:
            recipe = place.parent / "tuned.yaml"
            recipe.write_text(CLASSIFIER, encoding="utf-8")
        keys = (
            f"network.name={network.absolute()}",
            f"training.steps={self.steps}",
            f"training.learning_rate={self.rate!r}",
            f"training.seed={job.head['seed']}",
        )
        task, _ = study.fit(study.Job({}, str(recipe), keys), place)
        return study.accuracy(load_network(place), task, task.texts.test)


def start(job: study.Job, folder: Path) -> Path:
    """A folder with the recipe's discriminator before any training, and its tokenizer."""
    task = load_task(job.recipe, job.keys)
    net, _ = task.build(task.tokenizer)
    with quiet_loading():
        net.save_pretrained(folder)
    task.tokenizer.save_pretrained(folder)
    return folder


def heads(task: Any, place: Path) -> dict[str, float]:
    """How different the heads of the discriminator's first layer are, over some test passages."""
    trained = load_network(place)
    first = AttentionCalls(call for call in inspect(trained.net) if call.layer == 0)
    rows = task.test[: task.recipe.report.head_texts]
    if not rows:
        return {}
    inputs = (batch.inputs for batch in task.evaluation.replaced(trained, rows))
    (site,) = site_heads(trained.captured(inputs, first), trained.key, {})
    return {name: getattr(site, name) for name in HEADS}


STUDY = PretrainingStudy
