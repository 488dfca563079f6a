"""Commands that attack, compare and decide; their options are those of classes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from probattn.attacks import AttackOptions, CounterFitting
from probattn.cli.console import check_recipe, echo, fails_in_one_line, import_tasks, interruption_says, show
from probattn.cli.options import (
    DeviceOption,
    JsonOption,
    QuietOption,
    output_option,
    run_argument,
    takes_options,
)
from probattn.comparison import CompareOptions
from probattn.reproduce import ReproduceOptions
from probattn.triage import TriageOptions

commands = typer.Typer()


@commands.command()
@fails_in_one_line
@takes_options
def attack(
    run: Annotated[Path, run_argument("Folder of a finished run of texts, or the folder 'baseline' in one.")],
    options: AttackOptions,
    output: Annotated[Path | None, output_option("Folder of the records; RUN/attacks by default.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Begin anew; an interrupted attack goes on otherwise.")
    ] = False,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Attack a run's classifier with changed texts (TextAttack); continues an attack that was interrupted."""
    import_tasks()
    from probattn.attacks import attack_run, attack_table, read_attack
    from probattn.tasks import devices, progress

    command = "the same command without --again" if again else "the same command"
    goes_on = interruption_says(lambda: f"{command} goes on where it was")
    with goes_on, devices.on(device), progress.shown(quiet=quiet):
        file, result = attack_run(run, options, output=output, again=again)
    if as_json:
        typer.echo(result.model_dump_json())
        return
    show(attack_table(result, read_attack(file.with_suffix(".jsonl"))[1]))
    typer.echo(f"results: {file}")


@commands.command()
@fails_in_one_line
@takes_options
def attack_vectors(
    options: CounterFitting,
    output: Annotated[Path | None, output_option("The file; in the user's cache by default.")] = None,
    source: Annotated[
        str, typer.Option(help="Vectors to fit: glove-6b-50d, or a text file, frequent words first.")
    ] = "glove-6b-50d",
    words: Annotated[int, typer.Option(help="Most words, the most frequent ones.", min=2)] = 60_000,
    quiet: QuietOption = False,
) -> None:
    """Make counter-fitted word vectors (synonyms near, antonyms apart), which attacks by words need."""
    from probattn.attacks import make_vectors
    from probattn.attacks.vectors import fitted_table
    from probattn.tasks import progress

    with progress.shown(quiet=quiet):
        file, fitted = make_vectors(output, source, most=words, options=options)
    show(fitted_table(fitted))
    typer.echo(f"vectors: {file}")


@commands.command()
@fails_in_one_line
def attack_table(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs that were attacked, of any methods and seeds.")
    ],
) -> None:
    """Compare the attacks on several runs, methods by method, over their seeds."""
    from probattn.attacks import compared_attacks

    show(compared_attacks(runs))


@commands.command()
@fails_in_one_line
@takes_options
def compare(
    options: CompareOptions,
    output: Annotated[Path, output_option("Folder of the runs and of the page.")],
    as_json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train recipes over seeds and compare every prediction method; continues what was interrupted."""
    for recipe in options.recipes:
        check_recipe(recipe)
    import_tasks()
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


@commands.command()
@fails_in_one_line
@takes_options
def reproduce(
    options: ReproduceOptions,
    table: Annotated[
        str | None,
        typer.Argument(help="PAPER/TABLE, such as babn/table-5, or claims; without it tables are listed."),
    ] = None,
    output: Annotated[
        Path | None, output_option("Folder of the runs; reproduced/PAPER/TABLE/SIZE by default.")
    ] = None,
    reuse: Annotated[
        Path | None,
        typer.Option(
            help="Folder with runs of other tables, reproduced by default; one with the same recipe and seed is copied."
        ),
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """List the papers' tables or claims, or run what a table needs and show its figures beside the paper's."""
    if table in (None, "claims"):
        from probattn import reproduce as declared

        listed = declared.claims_sheet() if table else declared.listing()
        if as_json:
            typer.echo(json.dumps(asdict(listed)))
        else:
            show(listed)
        return
    from probattn.reproduce import reproduce as run
    from probattn.reproduce import sheet
    from probattn.tasks import devices, progress

    options = replace(options, set=(*options.set, *devices.override(device)))
    usual = Path("reproduced")
    folder = output or usual / table / options.size
    reuse = reuse or (usual if usual.is_dir() else None)
    goes_on = interruption_says(lambda: "the same command goes on where it was")
    with goes_on, devices.on(device), progress.shown(quiet=quiet):
        file, record = run(table, options, folder, reuse=reuse, quiet=quiet)
    if as_json:
        typer.echo(record.model_dump_json())
    else:
        show(sheet(record))
        echo(f"record: {file}")
    if not record.measured:
        raise typer.Exit(1)


@commands.command()
@fails_in_one_line
@takes_options
def triage(
    run: Annotated[Path, run_argument("Folder of a finished run whose answers are right or wrong.")],
    options: TriageOptions,
    data: Annotated[
        str | None,
        typer.Option(
            help="Held-out inputs with their classes: a file with the columns of the training data, or a named data "
            "set; the run's test data by default."
        ),
    ] = None,
    output: Annotated[Path | None, output_option("The policy; policy.json in the run by default.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Predict anew instead of reading stored predictions.")
    ] = False,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find which inputs can be answered at a target error rate; `predict --policy` applies the policy."""
    import_tasks()
    from probattn import tasks
    from probattn.tasks import devices, progress
    from probattn.triage import triage_run, triage_table
    from probattn.triage.page import attainable
    from probattn.triage.policy import sibling

    with devices.on(device), progress.shown(quiet=quiet):
        file, results = triage_run(tasks.run_task(run), run, options, data=data, output=output, again=again)
    if as_json:
        typer.echo(results.model_dump_json())
        return
    show(triage_table(results))
    echo(f"policy: {file}\nreport: {sibling(file, '.html')}")
    larger = attainable(results)
    advice = f"predict {quote(str(run))} --policy {quote(str(file))} --input FILE"
    if larger is not None:
        advice = f"triage {quote(str(run))} --error {larger.error:g}"
    echo(f"next: probattn {advice}")


@commands.command()
@fails_in_one_line
def review(
    run: Annotated[Path, run_argument("Folder of the run that predicted.")],
    file: Annotated[
        Path,
        typer.Argument(
            help="A file of `predict --policy` in which people filled the column reviewed, or an export of Label "
            "Studio (.json)."
        ),
    ],
    *,
    policy: Annotated[
        Path | None, typer.Option(help="The policy that decided; the run's by default.")
    ] = None,
    output: Annotated[
        Path | None,
        output_option(
            "Labels for the next training: the reviewed rows, with the columns of the training file."
        ),
    ] = None,
    with_training: Annotated[
        bool, typer.Option("--with-training", help="Write the rows of the training file before them.")
    ] = False,
    new_classes: Annotated[
        bool, typer.Option("--new-classes", help="Write rows of classes that the network does not have, too.")
    ] = False,
    reviewed_column: Annotated[
        str | None, typer.Option(help="Column of people's classes.", show_default="reviewed")
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(help="Column of the texts in the file; that of the training data by default."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take people's decisions back: labels for the next training, and the guarantee of the answers tested again."""
    from probattn.tasks import RunError

    if with_training and output is None:
        raise RunError("--with-training: expected --output with it, got none")
    import_tasks()
    from probattn.cli.reviewing import rows_of, write_labels
    from probattn.tasks import run_task
    from probattn.tasks.sections.yaml_nodes import one_line_yaml
    from probattn.triage.page import promise_words
    from probattn.triage.policy import read_policy
    from probattn.triage.review import review as compared

    task, decided = run_task(run), read_policy(policy or run)
    for replaced in (file, Path(str(getattr(task.recipe.data.train, "source", file)))):
        if output is not None and output.resolve() == replaced.expanduser().resolve():
            raise RunError(f"--output {output}: expected another file, it would replace rows that are read")
    rows = rows_of(file, reviewed_column)
    result = compared(rows, decided, reviewed_column, str(file))
    count = 0
    if output is not None:
        columns = {"label": reviewed_column, "text": text_column}
        further = {"with_training": with_training, "new_classes": new_classes}
        count = write_labels(task, run, rows, output, columns, decided.classes, **further)
    if as_json:
        typer.echo(result.model_dump_json())
        return
    echo(f"policy: {promise_words(decided)}; calibrated on {decided.data}")
    for line in result.lines(decided):
        echo(line)
    if output is not None:
        left = 0 if new_classes else sum(result.new_classes.values())
        told = f"; {left:,} of new classes are left out" if left else ""
        echo(f"labels: {output} ({count:,} rows{told})")
        if not count:
            return
        key = quote(f"data.train.source={one_line_yaml(str(output))}")
        echo(f"next: probattn train {quote(str(run))}/recipe.yaml --set {key} -o NEW_FOLDER")
        echo(
            "then: probattn triage NEW_FOLDER --data FILE, with labels of a random sample of inputs; reviewed rows are "
            "more difficult ones"
        )
