"""Agreement of attention with what a network knows about single words, over data sets and seeds.

    PROBATTN_DATA=/data python tests/benchmarks/agreement_study.py runs/agreement --subjects sst2 --seeds 3

The tables of Snell et al. 2021 (2, 3 and the translations' 4): for every subject and seed a network is trained four
times, as it is, from another seed, with uniform attention and, for classification, with everything but attention frozen
(appendix A.6), and watched at chosen steps; a bag-of-words proxy is trained on the same data. `multi30k_linear` has a
network whose output is linear, for which the best possible attention can be computed (appendix A.1). A run that is
finished is not run again and one that was interrupted is resumed. It writes docs/data/agreement.json.

`--frozen-only` trains what the figures of the frozen probe need, two networks a seed, and puts them into that file:

    python tests/benchmarks/agreement_study.py runs/agreement --frozen-only --subjects imdb,bbc
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, cast

import typer
from agreement_measures import PAIRS, mean_course, measure, measure_frozen, name, optimal

from probattn.metrics.functional import mean_interval
from probattn.models import RecurrentForTranslation
from probattn.tasks import load_network, load_task, train
from probattn.tasks.agreement import Recorded
from probattn.tasks.run import package_versions
from probattn.tasks.task import MODEL, RECIPE

OTHER_SEED = 1000
"""What is added to a seed for its second run."""

TRANSLATION_STEPS = [0, 50, 100, 250, 500, 750, 1000, 1500]
CLASSIFICATION_STEPS = [0, 10, 50, 100, 150, 200, 250, 500, 750]
SENTENCES = 60
"""Sentences for which the best attention is computed."""

FROZEN = ("accuracy", "agreement", "with_learned", "with_learned_last")
"""Figures of a frozen probe, which have means over seeds."""

OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "data" / "agreement.json"
Found = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A network and its data.

    Attributes:
        recipe: its name.
        uniform: the key that makes attention uniform.
        examples: validation examples that are watched.
        steps: when, the last update apart.
        longer: when in the run under uniform attention after that, its last update the last: what is known of single
            words in the end moves away from them (A.7).
        linear: whether its output is a single linear map, and the best possible attention is computed.
    """

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


def run_one(subject: Subject, method: str, seed: int, overrides: Sequence[str], place: Path) -> Any:
    """Trains one network, or finishes its training; its task."""
    task = load_task(subject.recipe, [*subject.changes(method, seed), *overrides])
    if not (place / MODEL).exists():
        train(task, place, resume=(place / RECIPE).exists(), quiet=True)
    return task


def run_seed(key: str, seed: int, overrides: Sequence[str], folder: Path) -> Found:
    """Trains and measures everything of one subject and seed, or reads what is there."""
    subject, place = SUBJECTS[key], folder / key / f"seed-{seed}"
    file = place / "measured.json"
    if file.exists():
        found: Found = json.loads(file.read_text(encoding="utf-8"))
        return found
    folders = {method: place / method for method in subject.methods}
    trained = [run_one(subject, method, seed, overrides, folders[method]) for method in subject.methods]
    head = {"subject": key, "seed": seed}
    if subject.linear:
        net = cast(RecurrentForTranslation, load_network(folders["learned"]).net.cpu())
        found = head | {"optimal": optimal(net, trained[0].data.watched, SENTENCES)}
    else:
        found = head | measure(folders)
    written = json.dumps(found, indent=1) + "\n"
    file.write_text(written, encoding="utf-8")
    again: Found = json.loads(written)  # as another call will read it: keys are text there
    return again


def frozen_seed(key: str, seed: int, overrides: Sequence[str], folder: Path) -> Found:
    """Trains the network as it is and with a frozen probe, or reads them, and measures the second beside the first."""
    subject, place = SUBJECTS[key], folder / key / f"seed-{seed}"
    for method in ("learned", "frozen"):
        run_one(subject, method, seed, overrides, place / method)
    return measure_frozen(*(Recorded.read(place / method) for method in ("learned", "frozen")))


def add_frozen(keys: Sequence[str], seeds: int, overrides: Sequence[str], folder: Path, output: Path) -> None:
    """Puts the figures of the frozen probe into the file, beside what it has of the same subjects and seeds."""
    content: Found = json.loads(output.read_text(encoding="utf-8"))
    if (had := content["setting"]["versions"]) != (here := package_versions()):
        raise typer.BadParameter(f"--frozen-only: {output} was made with {had}, here are {here}")
    for run in content["runs"]:
        if run["subject"] in keys and run["seed"] < seeds and "frozen" in SUBJECTS[run["subject"]].methods:
            run["frozen"] = frozen_seed(run["subject"], run["seed"], overrides, folder)
            content["summary"] = summarise(content["runs"])
            output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            typer.echo(f"{run['subject']}/seed-{run['seed']}: {run['frozen']}")


def summarise(runs: Sequence[Found]) -> Found:
    """Means and intervals over seeds by subject."""
    summary: Found = {}
    for key in dict.fromkeys(run["subject"] for run in runs):
        own = [run for run in runs if run["subject"] == key]
        summary[key] = {"seeds": len(own)}
        if "optimal" in own[0]:
            columns = own[0]["optimal"]
            summary[key] |= {
                column: mean_interval(run["optimal"][column] for run in own)._asdict() for column in columns
            }
            continue
        for table in ("agreement", "tau"):
            summary[key][table] = {
                name(pair): mean_interval(run[table][name(pair)] for run in own)._asdict() for pair in PAIRS
            }
        for table in ("xi", "xi_bleu"):
            if table in own[0]:
                summary[key][table] = {
                    column: _mean_xi([run[table][column] for run in own]) for column in own[0][table]
                }
        for value in ("chance", "accuracy", "uniform_accuracy"):
            summary[key][value] = mean_interval(run[value] for run in own)._asdict()
        summary[key]["course"] = {
            course: mean_course(run["course"][course] for run in own) for course in own[0]["course"]
        }
        if "frozen" in own[0]:
            summary[key]["frozen"] = {
                value: mean_interval(run["frozen"][value] for run in own)._asdict()
                for value in FROZEN
                if all(value in run["frozen"] for run in own)
            }
    return summary


def _mean_xi(found: Sequence[Found]) -> Found:
    """The mean performance, and how many seeds reached the agreement at all."""
    performance = mean_interval(each["performance"] for each in found)._asdict()
    return performance | {"reached": sum(each["reached"] for each in found)}


def main(
    folder: Annotated[Path, typer.Argument(help="Where the runs go.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 3,
    subjects: Annotated[str, typer.Option(help="Subjects, separated by commas.")] = ",".join(SUBJECTS),
    output: Annotated[Path, typer.Option(help="The file of results.")] = OUTPUT,
    frozen_only: Annotated[
        bool, typer.Option("--frozen-only", help="Figures of the frozen probe alone, into the file.")
    ] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipes.")] = None,
) -> None:
    """Runs what is missing, seed by seed, and writes the results after each."""
    chosen = subjects.split(",")
    unknown = [key for key in chosen if key not in SUBJECTS]
    if unknown:
        raise typer.BadParameter(f"subjects: expected some of {', '.join(SUBJECTS)}, got {unknown[0]!r}")
    overrides = list(set_ or [])
    if frozen_only:
        add_frozen(chosen, seeds, overrides, folder, output)
        return
    setting = {
        "recipes": {key: SUBJECTS[key].recipe for key in chosen},
        "overrides": overrides,
        "versions": package_versions(),
    }
    runs: list[Found] = []
    for seed, key in product(range(seeds), chosen):
        runs.append(run_seed(key, seed, overrides, folder))
        output.parent.mkdir(parents=True, exist_ok=True)
        content = {"setting": setting, "runs": runs, "summary": summarise(runs)}
        output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        shown = runs[-1].get("agreement") or runs[-1]["optimal"]
        typer.echo(f"{key}/seed-{seed}: " + ", ".join(f"{what} {value:.3f}" for what, value in shown.items()))


if __name__ == "__main__":
    typer.run(main)
