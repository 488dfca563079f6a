"""The command that decides which inputs a run answers."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from probattn.cli.console import drawing_options, echo, options_error, show
from probattn.cli.errors import fails_in_one_line
from probattn.cli.options import DeviceOption, JsonOption, QuietOption, SamplesOption, SeedOption

commands = typer.Typer()


@commands.command()
@fails_in_one_line
def triage(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run that gives each input one class.")],
    error: Annotated[
        float | None,
        typer.Option(help="Promised error among answered inputs; 0.05 without --cost, none with it."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="With which the promise holds.")] = 0.95,
    cost: Annotated[
        float | None, typer.Option(help="Cost of a wrong answer, where a person's decision costs 1.")
    ] = None,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="A threshold, and a promise, for each predicted class.")
    ] = False,
    sets: Annotated[
        Literal["lac", "aps"] | None,
        typer.Option(help="Sets of classes that miss the true one no more often than promised."),
    ] = None,
    novelty: Annotated[
        float | None,
        typer.Option(
            help="Share of the inputs like the held-out ones that, on average, may go to a person because they are far "
            "from the training data; without it the distance does not count."
        ),
    ] = None,
    score: Annotated[
        Literal["least_confidence", "predictive_entropy", "expected_entropy", "mutual_information"],
        typer.Option(help="What orders inputs."),
    ] = "least_confidence",
    uncertainty: Annotated[
        Literal["draws", "moments"], typer.Option(help="How probabilities are predicted.")
    ] = "draws",
    num_samples: SamplesOption = None,
    seed: SeedOption = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Held-out inputs with their classes: a file with the columns of the training data, or a named data "
            "set; the run's test data by default."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The policy; policy.json in the run by default.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Predict anew what an earlier call kept.")] = False,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find which inputs can be answered at a promised error; `predict --policy` applies the policy."""
    from probattn import tasks
    from probattn.tasks import devices, progress
    from probattn.triage import TriageOptions, triage_run, triage_table
    from probattn.triage.running import sibling

    task = tasks.run_task(run)
    try:
        options = TriageOptions(
            error=0.05 if error is None and cost is None else error,
            confidence=confidence,
            cost=cost,
            by_class=by_class,
            score=score,
            sets=sets,
            novelty=novelty,
            uncertainty=uncertainty,
            **drawing_options(task, num_samples=num_samples, seed=seed),
        )
    except ValueError as problem:
        raise options_error("triage", problem) from problem
    with devices.on(device), progress.shown(quiet=quiet):
        file, results = triage_run(task, run, options, data=data, output=output, again=again)
    if as_json:
        typer.echo(results.model_dump_json())
        return
    show(triage_table(results))
    echo(f"policy: {file}\nreport: {sibling(file, '.html')}")
    echo(f"next: probattn predict {quote(str(run))} --policy {quote(str(file))} --input FILE")
