"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(help="Folder of a finished run.")]
RunsArgument = Annotated[
    list[Path], typer.Argument(help="Folder of a finished run, or of several: one recipe, a seed each.")
]
BaselineOption = Annotated[Path | None, typer.Option(help="Folder of a deterministic run to compare with.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output, and nothing else there.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress.")]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="auto, cpu, cuda, cuda:1 or mps; by default an accelerator where there is one."),
]
LimitOption = Annotated[
    int | None,
    typer.Option(help="Most examples of each data set, a fixed choice; metrics.json says so.", min=1),
]
SamplesOption = Annotated[int | None, typer.Option(help="Posterior draws; the recipe's by default.", min=1)]
SeedOption = Annotated[int | None, typer.Option(help="Seed of the draws; the recipe's by default.", min=0)]
