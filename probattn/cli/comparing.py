"""The command that compares recipes and ways of predicting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from probattn.cli.console import echo, options_error, show
from probattn.cli.errors import fails_in_one_line
from probattn.cli.options import DeviceOption, JsonOption, QuietOption

commands = typer.Typer()


@commands.command()
@fails_in_one_line
def compare(
    recipes: Annotated[
        list[str], typer.Argument(help="Recipes of texts: names or files; the first is the reference.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the runs and of the page.")],
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0.", min=1)] = 3,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of all recipes: data.train=trec (repeatable)."),
    ] = None,
    error: Annotated[float, typer.Option(help="Error at which is asked how much can be answered.")] = 0.05,
    against: Annotated[
        str,
        typer.Option(help="The way of the first recipe that differences are taken to: point, dropout, ..."),
    ] = "point",
    workers: Annotated[
        int, typer.Option(help="Processes that share the runs, of one thread each.", min=1)
    ] = 1,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train recipes over seeds and compare every way of predicting; continues what was interrupted."""
    from probattn.comparison import CompareOptions, comparison_table
    from probattn.comparison import compare as run
    from probattn.tasks import devices, progress

    changes = (*(set_ or []), *devices.override(device))
    try:
        options = CompareOptions(tuple(recipes), seeds, changes, error, against, workers)
    except ValueError as problem:
        raise options_error("compare", problem) from problem
    with devices.on(device), progress.shown(quiet=quiet):
        file, results = run(options, output, quiet=quiet)
    if as_json:
        typer.echo(results.model_dump_json())
        return
    show(comparison_table(results))
    echo(f"report: {file}")
