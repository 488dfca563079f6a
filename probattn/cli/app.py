"""The command line. Commands import what they need, so that ``--help`` and a typo answer at once."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.models import CommandInfo

from probattn.cli import checking, explaining, studies
from probattn.cli.built_in import recipe_files, recipes_table
from probattn.cli.checking import LabelColumn, PairColumn, TextColumn, check_file
from probattn.cli.columns import recognise
from probattn.cli.console import check_recipe, echo, fails_in_one_line, import_tasks, says_how_to_resume, show
from probattn.cli.options import (
    BaselineOption,
    DeviceOption,
    FileOptions,
    JsonOption,
    LimitOption,
    PairOption,
    QuietOption,
    RunArgument,
    RunsArgument,
    SamplesOption,
    output_option,
    run_argument,
    takes_options,
)
from probattn.cli.rows import ENDINGS, check_input
from probattn.files.durable import write_atomically
from probattn.options import DrawingOptions, ReleasePreset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from probattn.inference.run import FitResult

NOT_SHOWN = frozenset({"epoch", "log_likelihood", "kl", "kl_nats", "factors", "kl_weight", "seconds"})
"""Figures of a validation that the end of a training does not name: parts of the loss, and its circumstances."""

app = typer.Typer(
    help="From labelled texts to decisions: which answers can stand, which need a person, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

PANELS = {
    "From labels to decisions": "demo check init train triage predict review explain",
    "Evaluate and compare": "evaluate report compare attack attack-table attack-vectors",
    "Research": "recipes methods reproduce agreement inspect",
}
"""Commands in the order of ``--help``, by what they are for."""


def _recipe_names() -> list[str]:
    """Names of built-in recipes for the shell."""
    return sorted(recipe_files())


OutputOption = Annotated[Path | None, output_option("Folder of the run; the recipe's by default.")]


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
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe: a YAML file or the name of a built-in one.", autocompletion=_recipe_names
        ),
    ],
    output: OutputOption = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key: training.learning_rate=3e-5 (repeatable)."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Record how attention and the lexical probe develop.")
    ] = False,
    device: DeviceOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Train a network and its deterministic baseline."""
    check_recipe(recipe)
    import_tasks()
    from probattn import tasks
    from probattn.tasks import devices
    from probattn.tasks.run import Processes

    changes = [*(set_ or []), *devices.override(device)]
    task = tasks.load_task(recipe, changes)
    if probe:
        if "probe" not in task.recipe_class.model_fields:
            raise tasks.RunError(
                "--probe: expected a recipe of texts or of translation; this one has no section probe"
            )
        if task.recipe.probe is None:
            task = tasks.load_task(recipe, [*changes, "probe={}"])
    folder = output or Path(task.recipe.output)
    first = Processes(cpu=task.recipe.training.device == "cpu").is_first
    with says_how_to_resume(folder, device), devices.on(device):
        for line in task.notes() if first else ():
            echo(line)
        results = tasks.train(task, folder, resume=resume, quiet=quiet)
    if first:
        for line in training_lines(task, results):
            echo(line)
        echo(f"run: {folder}")
        quoted = shlex.quote(str(folder))
        decide = f"probattn triage {quoted} --error 0.05, or " if not isinstance(task.deciding, str) else ""
        echo(f"next: {decide}probattn report {quoted}")


@app.command()
@fails_in_one_line
def evaluate(
    run: RunsArgument,
    baseline: BaselineOption = None,
    limit: LimitOption = None,
    num_samples: SamplesOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Measure a run on its test, shifted and out-of-domain data, or several over their seeds; writes metrics.json."""
    import_tasks()
    from probattn import tasks
    from probattn.tasks import devices, progress

    runs = [(folder, tasks.limited(tasks.run_task(folder), limit, num_samples)) for folder in run]
    with devices.on(device), progress.shown(quiet=quiet):
        file, results = tasks.evaluate_runs(runs, baseline, again=True)
    if as_json:
        typer.echo(results.model_dump_json())
        return
    show(runs[0][1].view.table(results))
    _in_part(results)
    echo(f"results: {file}")
    echo(f"next: probattn report {shlex.join(map(str, run))}")


@app.command()
@fails_in_one_line
@takes_options
def predict(
    run: RunArgument,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts to classify, or to translate; or --input.")
    ] = None,
    pair: PairOption = None,
    *,
    options: DrawingOptions,
    file: FileOptions,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="A file of `probattn triage`, or its folder: which inputs are answered, which need human review, and "
            "how to predict, in place of --num-samples, --seed and --uncertainty."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Classify texts, or pairs of texts: label, probability and its spread over posterior draws; or translate them."""
    file.check("predict", texts, pair)
    if file.input is not None:
        check_input(file.input, file.format)
    import_tasks()
    from probattn import tasks
    from probattn.cli.predicting import check_texts, predict_file
    from probattn.tasks import devices

    task = tasks.run_task(run)
    answers_by = tasks.required(task.answering, run)
    answers_by.drawing(options)  # refuses what the task does not take
    with devices.on(device):
        applied, options = _decided_by(policy, task, run, options, file)
    if file.input is not None:
        with devices.on(device):
            counts = predict_file(answers_by, run, file, applied, options, quiet=quiet, as_json=as_json)
        _tell_file(file, *counts, applied, err=file.output is None or as_json)
        return
    first = texts or []
    check_texts(answers_by, run, first, pair or [])
    with devices.on(device):
        answers, objects = (applied or answers_by).answers(
            list(answers_by.predict(run, first, pair or None, options))
        )
    if as_json:
        for item in objects:
            typer.echo(json.dumps(item))
    elif isinstance(answers, str):
        echo(answers)
    else:
        show(answers)


def _tell_file(file: FileOptions, predicted: int, blank: int, applied: Any, *, err: bool) -> None:
    """Where predictions are and, of a policy, what it decided and whether the inputs are like those it was made on."""
    output = file.output
    if output is not None:
        echo(f"predictions: {output} ({predicted + blank:,} rows)", err=err)
    if applied is not None:
        decided, warning = applied.summary()
        empty = f"; {blank:,} row{'s' * (blank > 1)} without a text, too" if blank else ""
        echo(f"decisions: {decided}{empty}", err=err)
        if warning is not None:
            echo(f"warning: {warning}", err=True)
        if file.label_studio is not None:
            number, configuration = applied.write_tasks(file.label_studio)
            words = (
                f"tasks of Label Studio: {file.label_studio} ({number:,}); its configuration: {configuration}"
            )
            echo(words, err=err)


def _decided_by(
    path: Path | None, task: Any, run: Path, options: DrawingOptions, file: FileOptions
) -> tuple[Any, DrawingOptions]:
    """What answers by a policy, if any, and how it predicts; refuses options that say it otherwise."""
    from probattn.tasks import RunError

    if path is None:
        unused = next((name for name in ("audit", "label_studio") if getattr(file, name) is not None), None)
        if unused is not None:
            raise RunError(f"--{unused.replace('_', '-')}: expected --policy with it, got none")
        return None, options
    from probattn.triage import apply_policy
    from probattn.triage.policy import policy_file
    from probattn.triage.queue import configuration_path

    queue = file.label_studio
    if queue is not None and (queue.suffix != ".json" or not queue.parent.is_dir()):
        raise RunError(
            f"--label-studio {queue}: expected a file that ends in .json, in a folder that is there"
        )
    if queue is not None:
        configuration_path(queue)
        others = {"--input": file.input, "--output": file.output, "--policy": policy_file(path)}
        for option, other in others.items():
            if other is not None and queue.resolve() == Path(str(other)).resolve():
                raise RunError(
                    f"--label-studio {queue}: expected another file than {option}, which it would replace"
                )
    for option, value in (("--num-samples", options.num_samples), ("--seed", options.seed)):
        if value is not None:
            raise RunError(
                f"{option} {value}: expected no such option beside --policy, which says how to predict"
            )
    applied = apply_policy(task, run, path, audit=file.audit, tasks=file.label_studio is not None)
    return applied, applied.policy.drawing


@app.command()
@fails_in_one_line
def report(
    run: RunsArgument,
    baseline: BaselineOption = None,
    again: Annotated[
        bool, typer.Option("--again", help="Evaluate anew even if metrics.json is there.")
    ] = False,
    limit: LimitOption = None,
    num_samples: SamplesOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write report.html, evaluating the run first if that has not been done; of several runs, also seeds.html."""
    import_tasks()
    from probattn import tasks
    from probattn.tasks import devices, progress

    runs = [(folder, tasks.limited(tasks.run_task(folder), limit, num_samples)) for folder in run]
    with devices.on(device), progress.shown(quiet=quiet):
        page, file, results = tasks.report(runs, baseline, again=again)
    if as_json:
        summary = runs[0][1].view.summary(results)
        typer.echo(json.dumps({"report": str(page), "results": str(file), **summary}))
    else:
        _in_part(results)
        echo(f"report: {page}")


@app.command()
@fails_in_one_line
def agreement(
    run: Annotated[Path, run_argument("Folder of a run that was trained with --probe.")],
    uniform: Annotated[
        Path | None, typer.Option(help="Folder of the same run under uniform attention.")
    ] = None,
    second: Annotated[Path | None, typer.Option(help="Folder of the same run from another seed.")] = None,
    frozen: Annotated[Path | None, typer.Option(help="Folder of the same run with a frozen probe.")] = None,
    preset: Annotated[
        ReleasePreset, typer.Option(help="Saliency and proxy of the library, or of the authors' code.")
    ] = "default",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Measure what a run's attention agrees with: probes, saliency, and what that is worth; writes agreement.json."""
    import_tasks()
    from probattn.tasks.agreement import AGREEMENT, agreement_table, measure_agreement

    measured = measure_agreement(run, uniform, second, frozen, preset=preset, quiet=quiet)
    write_atomically(run / AGREEMENT, (measured.model_dump_json(indent=1) + "\n").encode())
    show(agreement_table(measured))
    echo(f"agreement: {run / AGREEMENT}")


@app.command()
@fails_in_one_line
def inspect(
    model: Annotated[str, typer.Argument(help="A network: 'minilm', a folder, or a name on the hub.")],
    layers: Annotated[str, typer.Option(help="'all', 'first', 'last', or numbers such as 0,1,-1.")] = "all",
    attention: Annotated[str, typer.Option(help="'all', 'self' or 'cross'.")] = "all",
) -> None:
    """List the attention calls of a network that can be made latent."""
    from probattn.tasks.errors import RunError, one_line

    indices: Any = layers
    if layers not in {"all", "first", "last"}:
        try:
            indices = [int(number) for number in layers.split(",")]
        except ValueError as error:
            raise RunError(f"--layers: expected 'all', 'first', 'last' or numbers, got {layers!r}") from error
    import_tasks()
    from probattn.models import inspect as inspect_network
    from probattn.recipes import NetworkRecipe
    from probattn.tasks.classification.networks import load_any

    net = load_any(NetworkRecipe(name=model))
    try:
        calls = inspect_network(net, layers=indices, attention=cast(Any, attention))  # or it refuses
    except (TypeError, ValueError) as error:
        raise RunError(one_line(error)) from error
    echo(str(calls))


@app.command()
@fails_in_one_line
def demo(
    output: OutputOption = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key of the demo's recipe.")
    ] = None,
    device: DeviceOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """From labels to decisions: film reviews that a network answers, those for human review, and the words why."""
    import_tasks()
    from probattn import tasks
    from probattn.cli.explaining import explained, print_explanation
    from probattn.tasks import devices, progress
    from probattn.tasks.run import launched
    from probattn.triage.running import first_decisions

    if launched():
        raise tasks.RunError(
            "demo: expected one process, got a launcher's several; several train with `probattn train`"
        )
    started = time.monotonic()
    task: Any = tasks.load_task("demo", [*(set_ or []), *devices.override(device)])
    folder = output or _free_folder(Path(task.recipe.output))
    echo(f"{task.recipe.name}: {len(task.data.train):,} training texts, run folder {folder}")
    with devices.on(device):
        with says_how_to_resume(folder, device):
            tasks.train(task, folder, quiet=quiet)
        with progress.shown(quiet=quiet):
            tables = first_decisions(task, folder)
        for table in tables:
            show(table)
        for explanation in explained(str(folder), task.recipe.report.texts[:1], None):
            print_explanation(explanation)
    minutes = (time.monotonic() - started) / 60
    echo(f"report: {(folder / 'triage.html').resolve()}  ({minutes:.1f} minutes in all)")
    echo(f"next: probattn report {folder}, or your own file: probattn init FILE.csv")


@app.command()
@fails_in_one_line
def recipes() -> None:
    """List the recipes that come with the library, and what each is for."""
    show(recipes_table())


@app.command()
@fails_in_one_line
def methods() -> None:
    """List the attention methods, with their sections of a recipe."""
    import_tasks("probattn.cli.starting")
    from probattn.cli.starting import methods_table

    show(methods_table())


@app.command()
@fails_in_one_line
def init(
    source: Annotated[
        str,
        typer.Argument(
            help="A .csv, .tsv, .xlsx or .jsonl file of texts and labels, or the name of a built-in recipe.",
            autocompletion=_recipe_names,
        ),
    ],
    output: Annotated[
        Path | None, output_option("The new file; by default in this folder, named after the source.")
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    pair_column: PairColumn = None,
    full: Annotated[
        bool, typer.Option("--full", help="Every key with what it means, as of a built-in recipe.")
    ] = False,
) -> None:
    """Write a recipe for a file of your own, in some twenty lines, or a built-in one with every key."""
    checked = None
    if Path(source).suffix.lower() in ENDINGS:
        checked = check_file(source, recognise(source, text_column, label_column, pair_column))
    else:
        check_recipe(source)
    import_tasks("probattn.cli.starting")
    from probattn.cli.starting import recipe_path, write_recipe

    path = recipe_path(source, output)
    if checked is not None:
        checked.tell()
    for line in write_recipe(source, path, checked, full=full):
        echo(line)


def training_lines(task: Any, results: Mapping[str, FitResult]) -> Iterator[str]:
    """Summary of a training: sizes of the data, classes, and of each network steps, time and validation."""
    yield from task.data_summary()
    for name, result in results.items():
        figures = [
            f"{key} {value:.4g}"
            for key, value in (result.validation or {}).items()
            if isinstance(value, float) and key not in NOT_SHOWN
        ]
        validation = f"; validation: {', '.join(figures)}" if figures else ""
        yield f"{name}: {result.step} steps in {result.seconds:.0f} s{validation}"


def _in_part(results: Any) -> None:
    """Says that an evaluation was not one of all."""
    if results.run.restricted:
        echo(
            f"note: measured in part ({results.run.restricted}); `probattn report RUN --again` measures the whole"
        )


def _free_folder(folder: Path) -> Path:
    """The folder, or its first numbered sibling that holds nothing."""
    path, number = folder, 2
    while path.exists() and any(path.iterdir()):
        path, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return path


def _in_panels(commands: Iterable[CommandInfo]) -> Iterator[CommandInfo]:
    """The commands in the order of :data:`PANELS`, with their panels."""
    by_name = {
        str(item.name or item.callback.__name__).replace("_", "-"): item for item in commands if item.callback
    }
    for panel, names in PANELS.items():
        for name in names.split():
            by_name[name].rich_help_panel = panel
            yield by_name.pop(name)
    yield from by_name.values()


app.registered_commands = [
    *_in_panels(
        command
        for commands in (app, studies.commands, explaining.commands, checking.commands)
        for command in commands.registered_commands
    )
]
