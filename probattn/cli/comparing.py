"""The command that compares recipes and ways of predicting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from probattn.cli.console import echo, show
from probattn.cli.errors import fails_in_one_line
from probattn.cli.options import DeviceOption, JsonOption, QuietOption, takes_options
from probattn.comparison import CompareOptions

commands = typer.Typer()


@commands.command()
@fails_in_one_line
@takes_options
def compare(
    options: CompareOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the runs and of the page.")],
    as_json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train recipes over seeds and compare every way of predicting; continues what was interrupted."""
    from probattn.comparison import compare as run
    from probattn.comparison import comparison_table
    from probattn.tasks import devices, progress

    options = replace(options, set=(*options.set, *devices.override(device)))
    with devices.on(device), progress.shown(quiet=quiet):
        file, results = run(options, output, quiet=quiet)
    if as_json:
        typer.echo(results.model_dump_json())
        return
    show(comparison_table(results))
    echo(f"report: {file}")
