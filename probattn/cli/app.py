"""The command line. Commands import what they need, so that ``--help`` and a typo answer at once."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from probattn.cli.errors import fails_in_one_line, says_how_to_resume

if TYPE_CHECKING:
    from probattn.inference.report import Sheet

app = typer.Typer(
    help="Attention weights as latent variables: train, evaluate, predict, report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

RunArgument = Annotated[Path, typer.Argument(help="Folder of a finished run.")]
RunsArgument = Annotated[
    list[Path], typer.Argument(help="Folder of a finished run, or of several: one recipe, a seed each.")
]
BaselineOption = Annotated[Path | None, typer.Option(help="Folder of a deterministic run to compare with.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output, and nothing else there.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder of the run; the recipe's by default.")
]


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Attention weights as latent variables: train, evaluate, predict, report."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"probattn {installed('probattn')}")
        raise typer.Exit


@app.command()
@fails_in_one_line
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe: a YAML file or the name of a built-in one.")],
    output: OutputOption = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key: training.learning_rate=3e-5 (repeatable)."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Record how attention and lexical probe come about.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Train a network, and its deterministic baseline beside it."""
    from probattn import tasks
    from probattn.tasks.run import Processes

    task = tasks.load_task(recipe, set_ or [])
    if probe:
        if "probe" not in task.recipe_class.model_fields:
            raise tasks.RunError(
                "--probe: expected a recipe of texts or of translation; this one has no section probe"
            )
        if task.recipe.probe is None:
            task = tasks.load_task(recipe, [*(set_ or []), "probe={}"])
    folder = output or Path(task.recipe.output)
    first = Processes(cpu=task.recipe.training.device == "cpu").is_first
    with says_how_to_resume(folder):
        for line in task.notes() if first else ():
            _echo(line)
        results = tasks.train(task, folder, resume=resume, quiet=quiet)
    if first:
        for name, result in results.items():
            _echo(f"{name}: {result.step} steps in {result.seconds:.0f} s")
        _echo(f"run: {folder}")


@app.command()
@fails_in_one_line
def evaluate(run: RunsArgument, baseline: BaselineOption = None, as_json: JsonOption = False) -> None:
    """Measure a run on its test, shifted and out-of-domain data, or several over their seeds; writes metrics.json."""
    from probattn import tasks

    runs = [(folder, tasks.run_task(folder)) for folder in run]
    file, results = tasks.evaluate_runs(runs, baseline, again=True)
    if as_json:
        typer.echo(results.model_dump_json())
        return
    show(runs[0][1].table(results))
    _echo(f"results: {file}")


@app.command()
@fails_in_one_line
def predict(
    run: RunArgument,
    texts: Annotated[list[str], typer.Argument(help="Texts to classify, or to translate.")],
    pair: Annotated[
        list[str] | None,
        typer.Option("--pair", help="The second text of a pair, one for each text, in their order."),
    ] = None,
    num_samples: Annotated[int, typer.Option(help="Posterior draws.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the draws.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Classify texts, or pairs of texts: label, probability and its spread over posterior draws; or translate them."""
    from probattn import tasks

    for words, given in (("text", texts), ("--pair", pair or [])):
        blank = [place for place, text in enumerate(given, 1) if not text.strip()]
        if blank:
            raise tasks.RunError(f"{words} {blank[0]}: expected some words, got none")
    task = tasks.run_task(run)
    answers, objects = task.answers(
        task.predict(run, texts, pair or None, num_samples=num_samples, seed=seed)
    )
    if as_json:
        for each in objects:
            typer.echo(json.dumps(each))
    elif isinstance(answers, str):
        _echo(answers)
    else:
        show(answers)


@app.command()
@fails_in_one_line
def report(
    run: RunsArgument,
    baseline: BaselineOption = None,
    again: Annotated[
        bool, typer.Option("--again", help="Evaluate anew even if metrics.json is there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write report.html, evaluating the run first if that has not been done; of several runs, also seeds.html."""
    from probattn import tasks

    runs = [(folder, tasks.run_task(folder)) for folder in run]
    page, file, results = tasks.report(runs, baseline, again=again)
    if as_json:
        summary = runs[0][1].summary(results)
        typer.echo(json.dumps({"report": str(page), "results": str(file), **summary}))
    else:
        _echo(f"report: {page}")


@app.command()
@fails_in_one_line
def agreement(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was trained with --probe.")],
    uniform: Annotated[
        Path | None, typer.Option(help="Folder of the same run under uniform attention.")
    ] = None,
    second: Annotated[Path | None, typer.Option(help="Folder of the same run from another seed.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Measure what a run's attention agrees with: probes, saliency, and what that is worth; writes agreement.json."""
    from probattn.files.durable import write_atomically
    from probattn.tasks.agreement import AGREEMENT, agreement_table, measure_agreement

    found = measure_agreement(run, uniform, second, quiet=quiet)
    write_atomically(run / AGREEMENT, (found.model_dump_json(indent=1) + "\n").encode())
    show(agreement_table(found))
    _echo(f"agreement: {run / AGREEMENT}")


@app.command()
@fails_in_one_line
def inspect(
    model: Annotated[str, typer.Argument(help="A network: 'minilm', a folder, or a name on the hub.")],
    layers: Annotated[str, typer.Option(help="'all', 'first', 'last', or numbers such as 0,1,-1.")] = "all",
    attention: Annotated[str, typer.Option(help="'all', 'self' or 'cross'.")] = "all",
) -> None:
    """List the attention calls of a network that can be made latent."""
    from probattn.models import inspect as inspect_network
    from probattn.recipes import NetworkRecipe
    from probattn.tasks.classification.networks import load_any
    from probattn.tasks.errors import RunError, one_line

    chosen: Any = layers
    if layers not in {"all", "first", "last"}:
        try:
            chosen = [int(part) for part in layers.split(",")]
        except ValueError as error:
            raise RunError(f"--layers: expected 'all', 'first', 'last' or numbers, got {layers!r}") from error
    net = load_any(NetworkRecipe(name=model))
    try:
        calls = inspect_network(net, layers=chosen, attention=cast(Any, attention))  # or it refuses
    except (TypeError, ValueError) as error:
        raise RunError(one_line(error)) from error
    _echo(str(calls))


@app.command()
@fails_in_one_line
def demo(
    output: OutputOption = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key of the demo's recipe.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Run the main job: a pretrained network on film reviews, deterministic against Bayesian, with a report."""
    from probattn import tasks
    from probattn.tasks.run import launched

    if launched():
        raise tasks.RunError(
            "demo: expected one process, got a launcher's several; several train with `probattn train`"
        )
    started = time.monotonic()
    task: Any = tasks.load_task("demo", set_ or [])
    folder = output or _free_folder(Path(task.recipe.output))
    _echo(f"{task.recipe.name}: {len(task.data.train):,} training texts, run folder {folder}")
    with says_how_to_resume(folder):
        tasks.train(task, folder, quiet=quiet)
    _echo("evaluating ...")
    page, _, results = tasks.report([(folder, task)])
    show(task.table(results))
    minutes = (time.monotonic() - started) / 60
    _echo(f"report: {page.resolve()}  ({minutes:.1f} minutes in all)")


def _echo(text: str) -> None:
    from probattn.inference.report import printable_lines

    typer.echo(printable_lines(text))


def show(sheet: Sheet) -> None:
    """Prints a table on standard output, in the width of the terminal where that is one."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(f"{sheet.text(width)}\n")


def _free_folder(folder: Path) -> Path:
    """The folder, or its first numbered sibling that holds nothing."""
    place, number = folder, 2
    while place.exists() and any(place.iterdir()):
        place, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return place
