"""Agreement of attention with what a network knows about single words, over data sets and seeds.

    PROBATTN_DATA=/data python tests/benchmarks/study.py agreement runs/agreement --subjects sst2 --seeds 3

The tables of Snell et al. 2021 (2, 3 and the translations' 4): for every subject and seed a network is trained four
times, as it is, from another seed, with uniform attention and, for classification, with everything but attention frozen
(appendix A.6), and watched at chosen steps; a bag-of-words proxy is trained on the same data. `multi30k_linear` has a
network whose output is linear, for which the best possible attention can be computed (appendix A.1). It writes
docs/data/agreement.json.

`--frozen-only` trains what the figures of the frozen probe need, two networks a seed, and puts them into that file:

    python tests/benchmarks/study.py agreement runs/agreement --frozen-only --subjects imdb,bbc
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import study
import typer
from agreement_measures import PAIRS, mean_course, measure, measure_frozen, name, optimal

from probattn.tasks import load_network
from probattn.tasks.agreement import Recorded

OTHER_SEED = 1000
"""What is added to a seed for its second run."""

TRANSLATION_STEPS = [0, 50, 100, 250, 500, 750, 1000, 1500]
CLASSIFICATION_STEPS = [0, 10, 50, 100, 150, 200, 250, 500, 750]
SENTENCES = 60
"""Sentences for which the best attention is computed."""

FROZEN = ("accuracy", "agreement", "with_learned", "with_learned_last")
"""Figures of a frozen probe, which have means over seeds."""


@dataclass(frozen=True)
class Subject:
    """A network and its data, and the updates at which it is watched; ``longer`` under uniform attention (A.7)."""

    recipe: str
    uniform: str = "network.config.uniform_attention=true"
    examples: int = 500
    steps: tuple[int, ...] = tuple(CLASSIFICATION_STEPS)
    longer: tuple[int, ...] = ()
    linear: bool = False

    @property
    def is_translation(self) -> bool:
        """Whether its outputs are words."""
        return self.uniform == "network.uniform_attention=true"

    @property
    def methods(self) -> tuple[str, ...]:
        """What is trained for each seed."""
        if self.linear:
            return ("learned",)
        return ("learned", "second", "uniform", *(() if self.is_translation else ("frozen",)))

    def changes(self, method: str, seed: int) -> list[str]:
        """Keys of the recipe for one run."""
        bleu = ", bleu: true" if self.is_translation else ""
        longer = self.longer if method == "uniform" else ()
        probe = f"probe={{steps: {[*self.steps, *longer[:-1]]}, examples: {self.examples}{bleu}}}"
        own = {"uniform": [self.uniform], "frozen": ["training.frozen_probe=true"]}.get(method, [])
        own += [f"training.steps={longer[-1]}"] if longer else []
        number = seed + OTHER_SEED if method == "second" else seed
        linear = ["network.output_width=0"] if self.linear else []
        return [*linear, probe, *own, f"training.seed={number}", "report.baseline=false"]


TRANSLATION = {
    "uniform": "network.uniform_attention=true",
    "examples": 200,
    "steps": tuple(TRANSLATION_STEPS),
}
SUBJECTS: Mapping[str, Subject] = MappingProxyType(
    {
        "sst2": Subject("sst2_additive", longer=(1000, 1500, 2000, 3000, 4000)),
        "imdb": Subject("imdb_additive"),
        "bbc": Subject("bbc_additive"),
        "multi30k": Subject("multi30k_lstm_reduced", **TRANSLATION),
        "multi30k_linear": Subject("multi30k_lstm_reduced", linear=True, **TRANSLATION),
    }
)
"""By the name that results go by."""


def summarise(runs: Sequence[study.Run]) -> study.Content:
    """Means and intervals over seeds by subject."""
    summary: study.Content = {}
    for key in dict.fromkeys(run["subject"] for run in runs):
        own = [run for run in runs if run["subject"] == key]
        summary[key] = {"seeds": len(own)}
        if "optimal" in own[0]:
            columns = own[0]["optimal"]
            summary[key] |= {
                column: study.interval(run["optimal"][column] for run in own) for column in columns
            }
            continue
        for table in ("agreement", "tau"):
            summary[key][table] = {
                name(pair): study.interval(run[table][name(pair)] for run in own) for pair in PAIRS
            }
        for table in ("xi", "xi_bleu", "xi_tau", "xi_tau_bleu"):
            if all(table in run for run in own):
                summary[key][table] = {
                    column: _mean_xi([run[table][column] for run in own])
                    for column in own[0][table]
                    if all(column in run[table] for run in own)
                }
        for value in ("chance", "accuracy", "uniform_accuracy"):
            summary[key][value] = study.interval(run[value] for run in own)
        summary[key]["course"] = {
            course: mean_course(run["course"][course] for run in own) for course in own[0]["course"]
        }
        if "frozen" in own[0]:
            summary[key]["frozen"] = {
                value: study.interval(run["frozen"][value] for run in own)
                for value in FROZEN
                if all(value in run["frozen"] for run in own)
            }
    return summary


def _mean_xi(found: Sequence[study.Run]) -> study.Content:
    """The mean performance, and how many seeds reached the agreement at all."""
    performance = study.interval(each["performance"] for each in found)
    return performance | {"reached": sum(each["reached"] for each in found)}


@dataclass(kw_only=True)
class AgreementStudy(study.Study):
    """Subjects, of whose networks several are trained for each seed."""

    folder: study.Folder
    seeds: study.Seeds = 3
    subjects: study.Names = None
    output: study.Output = study.DATA / "agreement.json"
    frozen_only: Annotated[
        bool, typer.Option("--frozen-only", help="Figures of the frozen probe alone, into the file.")
    ] = False
    set_: study.Keys = None

    summarise = staticmethod(summarise)

    def __post_init__(self) -> None:
        self.keys = study.chosen("subjects", self.subjects, SUBJECTS)

    def setting(self) -> study.Content:
        return {"recipes": {key: SUBJECTS[key].recipe for key in self.keys}, "overrides": self.overrides}

    def jobs(self) -> Iterator[study.Job]:
        for seed, key in product(range(self.seeds), self.keys):
            yield study.Job({"subject": key, "seed": seed}, SUBJECTS[key].recipe, folder=f"{key}/seed-{seed}")

    def train(self, job: study.Job, method: str) -> tuple[Path, Any]:
        """One network of a subject and seed: its folder and task."""
        subject, place = SUBJECTS[job.head["subject"]], self.place(job) / method
        keys = (*subject.changes(method, job.head["seed"]), *self.overrides)
        return place, study.fit(study.Job(job.head, job.recipe, keys), place)[0]

    def measure(self, job: study.Job) -> study.Run:
        """The columns of the tables, or the best possible attention."""
        subject = SUBJECTS[job.head["subject"]]
        trained = {method: self.train(job, method) for method in subject.methods}
        if not subject.linear:
            return measure({method: place for method, (place, _) in trained.items()})
        place, task = trained["learned"]
        return {"optimal": optimal(load_network(place).net.cpu(), task.data.watched, SENTENCES)}

    def said(self, run: study.Run) -> str:
        shown = run.get("agreement") or run["optimal"]
        return ", ".join(f"{what} {value:.3f}" for what, value in shown.items())

    def main(self) -> study.Content:
        """The whole study, or the frozen probe's figures beside what the file has of the same subjects and seeds."""
        if not self.frozen_only:
            return super().main()
        content = study.earlier(self.output, "--frozen-only")
        jobs = {(job.head["subject"], job.head["seed"]): job for job in self.jobs()}
        for run in content["runs"]:
            job = jobs.get((run["subject"], run["seed"]))
            if job is not None and "frozen" in SUBJECTS[run["subject"]].methods:
                places = (self.train(job, method)[0] for method in ("learned", "frozen"))
                run["frozen"] = measure_frozen(*map(Recorded.read, places))
                content["summary"] = summarise(content["runs"])
                study.write_json(content, self.output)
                typer.echo(f"{job.folder}: {run['frozen']}")
        return content


STUDY = AgreementStudy
