"""Runs a study, variants of recipes over seeds, and writes what was measured into a file of docs/data.

    PROBATTN_DATA=/data python tests/benchmarks/study.py NAME runs/NAME --seeds 5
    python tests/benchmarks/study.py --help

The study NAME is the class `STUDY` of NAME_study.py beside this file. What a run's figures are is kept as
`measured.json` in its folder, or in the file of results where a study has no folder. A run that is finished is not run
again and one that was interrupted is resumed, so a study can be stopped at any time. After each run the file of results
is written anew.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import torch
import typer
import yaml
from torch import Tensor

from probattn.data import TextDataset
from probattn.files.durable import write_atomically
from probattn.inference import FitResult, posterior_expectation
from probattn.metrics.functional import mean_interval
from probattn.tasks import Drawing, Network, load_task, train
from probattn.tasks.measured import predictions
from probattn.tasks.run import package_versions
from probattn.tasks.task import RECIPE

STUDIES = ("effects", "methods", "sentiment", "triage", "triage-heads")
DATA = Path(__file__).resolve().parents[2] / "docs" / "data"
MEASURED = "measured.json"
"""What a finished run's folder holds."""

Folder = Annotated[Path, typer.Argument(help="Where the runs go.")]
Output = Annotated[Path, typer.Option(help="The file of results.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")]
Keys = Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipes.")]
Names = Annotated[str | None, typer.Option(help="Names, separated by commas; all unless a default is shown.")]
Finished = Annotated[bool, typer.Option("--finished", help="Train nothing; take what is finished.")]
Full = Annotated[bool, typer.Option("--full", help="Sizes of the recipes.")]

Run = Mapping[str, Any]
Content = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One run of a study: what names it, its recipe, the keys of it that it changes, and its folder."""

    head: Mapping[str, Any]
    recipe: str = ""
    keys: tuple[str, ...] = ()
    folder: str = ""


class Study(ABC):
    """A study whose runs have folders. A subclass is a dataclass; its fields are the options of the command line."""

    folder: Path
    output: Path
    set_: list[str] | None
    finished: bool = False
    """Whether nothing is trained, and what is not finished is left out."""

    words: ClassVar[str] = "{}"
    """How a job is named in a line of progress, of its folder and its head."""

    @abstractmethod
    def jobs(self) -> Iterable[Job]:
        """What is to be run, in order."""

    @abstractmethod
    def measure(self, job: Job) -> Run:
        """Trains what a job asks for and measures it."""

    @abstractmethod
    def summarise(self, runs: Sequence[Run]) -> Any:
        """What the documentation shows of the runs, which is written beside them."""

    @abstractmethod
    def said(self, run: Run) -> str:
        """A run's figures in a line of progress."""

    def setting(self) -> Content:
        """What the runs have in common."""
        return {}

    @property
    def overrides(self) -> list[str]:
        """Keys of the recipes that all runs change."""
        return list(self.set_ or [])

    def place(self, job: Job) -> Path:
        """The folder of a run."""
        return self.folder / job.folder

    def begin(self) -> Content:
        """What the file of results holds before the first run."""
        return {"setting": {**self.setting(), "versions": package_versions()}, "runs": []}

    def read(self, job: Job) -> Run | None:
        """The figures of a finished run."""
        file = self.place(job) / MEASURED
        return {**read_json(file), **job.head} if file.exists() else None

    def make(self, job: Job) -> Run:
        """Runs a job and keeps its figures."""
        return write_json({**job.head, **self.measure(job)}, self.place(job) / MEASURED)

    def write(self, content: Content, run: Run) -> Content:
        """Writes the file of results with one run more; what it then holds."""
        runs = [*content["runs"], run]
        write_json({**content, "runs": runs, "summary": self.summarise(runs)}, self.output)
        return {**content, "runs": runs}

    def main(self) -> Content:
        """Runs what is missing, and writes the results after each run; all that was run."""
        content = self.begin()
        jobs = [(job, self.read(job)) for job in self.jobs()]
        missing = sum(run is None for _, run in jobs)
        made, started = 0, time.monotonic()
        for job, known in jobs:
            if known is None and self.finished:
                continue
            run = self.make(job) if known is None else known
            content = self.write(content, run)
            if known is None:
                made += 1
                left = timedelta(seconds=round((missing - made) * (time.monotonic() - started) / made))
                more = f"; {missing - made} left, about {left}" if made < missing else ""
                typer.echo(f"{self.words.format(job.folder, **job.head)}: {self.said(run)}{more}")
        return content


def fit(job: Job, place: Path) -> tuple[Any, FitResult]:
    """Trains a network, or finishes its training, and gives its task and what the training came to."""
    task = load_task(job.recipe, job.keys)
    return task, train(task, place, resume=(place / RECIPE).exists(), quiet=True)["model"]


def probabilities(trained: Network[Any], task: Any, data: TextDataset) -> Tensor:
    """Probabilities of the classes of each text, of latent attention the mean over draws."""
    batches, back = task.by_length(trained, data)
    found = predictions(trained, batches, Drawing.of(task.recipe.prediction), dropout=False)
    return found[trained.key].probabilities[back]


def accuracy(trained: Network[Any], task: Any, data: TextDataset) -> float:
    """Share of the labelled texts that the point prediction classifies right."""
    batches = task.batches(trained, data)
    guesses = [
        posterior_expectation(trained.program, trained.moved(batch)).argmax(dim=-1) for batch in batches
    ]
    return (torch.cat(guesses).cpu() == torch.tensor(data.labels)).double().mean().item()


def chosen(option: str, given: str | None, known: Collection[str]) -> list[str]:
    """The names of an option, all that are known if it is not given; others are refused."""
    names = list(known) if given is None else [name.strip() for name in given.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"{option}: expected some of {', '.join(known)}, got {unknown[0]!r}")
    return names


def declared(name: str) -> Any:
    """What NAME.yaml beside this file declares."""
    return yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text("utf-8"))


def read_json(file: Path) -> Any:
    """What a file holds."""
    return json.loads(file.read_text(encoding="utf-8"))


def write_json(content: Any, file: Path) -> Any:
    """Writes a file, whose folder is made; the content as it is read again.

    A list or an object that holds no other stands on one line, which keeps files short.
    """
    text = re.sub(
        r"[\[{][^\[\]{}]*[\]}]",
        lambda found: re.sub(r"\n *", " ", found[0]),  # no string has a line break
        json.dumps(content, indent=1) + "\n",
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text.encode())
    return json.loads(text)


def interval(values: Iterable[float]) -> dict[str, Any]:
    """Mean and interval."""
    return mean_interval(values)._asdict()


def paired(
    own: Iterable[Run], others: Mapping[int, Run], figure: Callable[[Run, Run], float]
) -> dict[str, Any] | None:
    """Mean and interval of a figure of each run and the other run of its seed; None without such runs."""
    values = [figure(run, others[run["seed"]]) for run in own if run["seed"] in others]
    return interval(values) if values else None


def by_seed(runs: Iterable[Run], **head: Any) -> dict[int, Run]:
    """The runs that are named so, by seed."""
    return {run["seed"]: run for run in runs if head.items() <= run.items()}


def command(study: type[Study]) -> Callable[..., None]:
    """A function with the options of a study, which runs it."""

    def call(**options: Any) -> None:
        study(**options).main()

    hints = get_type_hints(study, include_extras=True)
    given = inspect.signature(study).parameters.values()
    call.__annotations__ = hints
    call.__signature__ = inspect.Signature([one.replace(annotation=hints[one.name]) for one in given])
    return call


def main() -> None:
    """The command line of all studies."""
    app = typer.Typer(help="Runs a study and writes what was measured.", rich_markup_mode=None)
    for name in STUDIES:
        module = import_module(f"{name.replace('-', '_')}_study")
        app.command(name, help=module.__doc__)(command(module.STUDY))
    app()


if __name__ == "__main__":
    main()
