"""The command that decides which inputs a run answers."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from probattn.cli.console import echo, show
from probattn.cli.errors import fails_in_one_line
from probattn.cli.options import DeviceOption, JsonOption, QuietOption, takes_options
from probattn.triage import TriageOptions

commands = typer.Typer()


@commands.command()
@fails_in_one_line
@takes_options
def triage(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run that gives each input one class.")],
    options: TriageOptions,
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
    from probattn.triage import triage_run, triage_table
    from probattn.triage.running import sibling

    with devices.on(device), progress.shown(quiet=quiet):
        file, results = triage_run(tasks.run_task(run), run, options, data=data, output=output, again=again)
    if as_json:
        typer.echo(results.model_dump_json())
        return
    show(triage_table(results))
    echo(f"policy: {file}\nreport: {sibling(file, '.html')}")
    echo(f"next: probattn predict {quote(str(run))} --policy {quote(str(file))} --input FILE")
