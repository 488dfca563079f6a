"""Attacks on networks with soft, Bayesian, aligned and repulsive attention, trained on one task, over seeds.

    PROBATTN_DATA=/data python tests/benchmarks/study.py attack runs/domain --seeds 3

As table 3 of Zhang et al. (ICML 2021) and of Zhang et al. (NeurIPS 2021). The networks are those of the study of
domains (`study.py domain`), trained in the same folder if they are not there. It needs the package textattack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import domain_study
import study
import typer

from probattn.attacks import AttackOptions, attack_run
from probattn.attacks.options import Prediction

ATTACKS = ("textfooler", "textbugger", "deepwordbug")
VARIANTS = ("soft", "bam", "babn", "aligned", "repulsive")
LATENT = ("bam", "babn")
PREDICTIONS: tuple[Prediction, ...] = ("point", "draws", "moments")
MEASURES = ("failed", "accuracy", "attacked", "queries")


def summarise(runs: Sequence[study.Run]) -> study.Content:
    """By attack, variant and prediction: means with intervals, and differences to soft attention of the same seed."""
    summary: study.Content = {}
    for attack, variant, prediction in dict.fromkeys(
        (run["attack"], run["variant"], run["prediction"]) for run in runs
    ):
        own = [*study.by_seed(runs, attack=attack, variant=variant, prediction=prediction).values()]
        row: study.Content = {"values": study.means(own, MEASURES), "texts": sum(run["tried"] for run in own)}
        if variant != "soft":
            base = study.by_seed(runs, attack=attack, variant="soft")
            row["differences"] = study.differences(own, base, MEASURES)
        summary.setdefault(attack, {}).setdefault(variant, {})[prediction] = row
    return summary


@dataclass(kw_only=True)
class AttackStudy(study.Study):
    """Attacks on the networks of the study of domains."""

    folder: study.Folder
    seeds: study.Seeds = 3
    task: Annotated[str, typer.Option(help="A task of the study of domains.")] = "sentiment"
    attacks: study.Names = None
    variants: study.Names = None
    predictions: study.Names = None
    number: Annotated[int, typer.Option(min=1, help="Test texts that are attacked.")] = 60
    num_samples: Annotated[int, typer.Option(min=1, help="Draws of a prediction.")] = 10
    recipe: Annotated[str, typer.Option(help="Recipe that tasks and variants change.")] = "sentiment_babn"
    output: study.Output = study.DATA / "attacks.json"
    set_: study.Keys = None

    shown = ("failed", "accuracy", "attacked")

    def __post_init__(self) -> None:
        self.names = (
            study.chosen("attacks", self.attacks, ATTACKS),
            study.chosen("variants", self.variants, VARIANTS),
            study.chosen("predictions", self.predictions, PREDICTIONS),
        )

    def setting(self) -> study.Content:
        """What the attacks have in common."""
        common = {"task": self.task, "number": self.number, "num_samples": self.num_samples}
        return {**common, "recipe": self.recipe, "set": self.overrides}

    def jobs(self) -> Iterator[study.Job]:
        """The attacks on each network, seed by seed."""
        trained = domain_study.STUDY(
            folder=self.folder, seeds=self.seeds, tasks=self.task, recipe=self.recipe, set_=self.set_
        )
        networks = {(job.head["variant"], job.head["seed"]): job for job in trained.jobs()}
        attacks, variants, predictions = self.names
        for seed, attack, prediction, variant in product(range(self.seeds), attacks, predictions, variants):
            if prediction == "point" or variant in LATENT:
                job = networks[variant, seed]
                head = {"variant": variant, "seed": seed, "attack": attack, "prediction": prediction}
                yield study.Job(head, job.recipe, job.keys, f"{job.folder}/attacks/{attack}-{prediction}")

    def measure(self, job: study.Job) -> study.Run:
        """Trains a network if it is not there, and attacks it."""
        place: Path = self.place(job).parents[1]
        study.fit(job, place)
        options = AttackOptions(
            attack=job.head["attack"],
            prediction=job.head["prediction"],
            number=self.number,
            num_samples=self.num_samples,
        )
        found: Any = attack_run(place, options)[1].summary
        return {
            "failed": found.failed.value,
            "tried": found.failed.of,
            "exhausted": found.exhausted,
            "accuracy": found.accuracy.value,
            "attacked": found.accuracy_attacked.value,
            "queries": found.queries,
            "texts": found.texts,
        }

    summarise = staticmethod(summarise)


STUDY = AttackStudy
