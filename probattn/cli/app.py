"""The command line: train, evaluate, predict, report, agreement, inspect, demo."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, cast

import typer

import probattn
from probattn.cli.agreement import AGREEMENT, agreement_table, measure_agreement
from probattn.cli.description import describe_run
from probattn.cli.errors import CommandError, fails_in_one_line, one_line, one_to_compare, says_how_to_resume
from probattn.cli.evaluating import evaluate_run
from probattn.cli.experiment_evaluating import evaluate_experiment
from probattn.cli.experiments import train_experiment
from probattn.cli.graphs import evaluate_graph, train_graph
from probattn.cli.heads import load_start
from probattn.cli.networks import load_any
from probattn.cli.outcomes import summary, table, write_page
from probattn.cli.processes import Processes, launched
from probattn.cli.seeds import SEEDS, check_runs, combine_runs
from probattn.cli.sheets import show
from probattn.cli.showing import predict_texts
from probattn.cli.tables import predictions_table, results_table
from probattn.cli.trained import BASELINE, MODEL, RECIPE, EvaluationOptions, TrainedModel, load_model
from probattn.cli.training import prepare, train_run
from probattn.cli.translation import train_translation, translate_texts
from probattn.cli.translation_evaluating import evaluate_translation_run
from probattn.files.durable import write_atomically
from probattn.inference.report import (
    AnyResults,
    Example,
    Results,
    printable,
    printable_lines,
    read_any_results,
    write_report,
    write_results,
)
from probattn.models import inspect as inspect_network
from probattn.models.hosts.selection import Kind, Layers
from probattn.recipes import (
    AnyRecipe,
    ExperimentRecipe,
    GraphRecipe,
    NetworkRecipe,
    Recipe,
    TranslationRecipe,
    load_any_recipe,
    load_recipe,
)

RESULTS = "metrics.json"
REPORT = "report.html"

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
        typer.echo(f"probattn {probattn.__version__}")
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
    loaded = load_any_recipe(recipe, set_ or [])
    if probe:
        loaded = _probed(loaded, recipe, set_ or [])
    folder = output or Path(loaded.output)
    processes = Processes(cpu=loaded.training.device == "cpu")
    with says_how_to_resume(folder):
        if isinstance(loaded, GraphRecipe):
            results = train_graph(loaded, folder, resume=resume, quiet=quiet)
        elif isinstance(loaded, TranslationRecipe):
            results = train_translation(loaded, folder, resume=resume, quiet=quiet)
        elif isinstance(loaded, ExperimentRecipe):
            results = train_experiment(loaded, folder, resume=resume, quiet=quiet)
        else:
            prepared = prepare(loaded)
            if prepared.words is not None:
                processes.echo(str(prepared.words))
            results = train_run(prepared, folder, resume=resume, quiet=quiet)
    for name, result in results.items():
        processes.echo(f"{name}: {result.step} steps in {result.seconds:.0f} s")
    processes.echo(f"run: {folder}")


@app.command()
@fails_in_one_line
def evaluate(run: RunsArgument, baseline: BaselineOption = None, as_json: JsonOption = False) -> None:
    """Measure a run on its test, shifted and out-of-domain data, or several over their seeds; writes metrics.json."""
    file, results = _evaluated(run, baseline, again=True)
    if as_json:
        typer.echo(results.model_dump_json())
        return
    show(table(results))
    typer.echo(printable(f"results: {file}"))


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
    for words, given in (("text", texts), ("--pair", pair or [])):
        blank = [place for place, text in enumerate(given, 1) if not text.strip()]
        if blank:
            raise CommandError(f"{words} {blank[0]}: expected some words, got none")
    loaded = _any_recipe_of(run)
    if isinstance(loaded, TranslationRecipe):
        _check_pairs(run, False, len(texts), len(pair or []))
        for text, translation in zip(texts, translate_texts(run, loaded, texts), strict=True):
            typer.echo(
                json.dumps({"text": text, "translation": translation}) if as_json else printable(translation)
            )
        return
    recipe = _recipe_of(run)
    _check_pairs(run, recipe.data.train.build().paired, len(texts), len(pair or []))
    trained = load_model(run)
    options = EvaluationOptions(num_samples=num_samples, seed=seed, max_length=recipe.data.max_length)
    found = predict_texts(trained, texts, options, pairs=pair or None)
    if as_json:
        for example in found:
            typer.echo(json.dumps(_shown(example)))
    else:
        show(predictions_table(found))


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
    file, results = _evaluated(run, baseline, again=again or baseline is not None)
    for folder in run if len(run) > 1 else ():
        write_page(read_any_results(folder / RESULTS), folder / REPORT)
    page = write_page(results, file.with_name(REPORT) if len(run) == 1 else file.with_suffix(".html"))
    if as_json:
        typer.echo(json.dumps({"report": str(page), "results": str(file), **summary(results)}))
    else:
        typer.echo(printable(f"report: {page}"))


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
    found = measure_agreement(run, uniform, second, quiet=quiet)
    write_atomically(run / AGREEMENT, (found.model_dump_json(indent=1) + "\n").encode())
    show(agreement_table(found))
    typer.echo(printable(f"agreement: {run / AGREEMENT}"))


@app.command()
@fails_in_one_line
def inspect(
    model: Annotated[str, typer.Argument(help="A network: 'minilm', a folder, or a name on the hub.")],
    layers: Annotated[str, typer.Option(help="'all', 'first', 'last', or numbers such as 0,1,-1.")] = "all",
    attention: Annotated[str, typer.Option(help="'all', 'self' or 'cross'.")] = "all",
) -> None:
    """List the attention calls of a network that can be made latent."""
    chosen = layers if layers in {"all", "first", "last"} else [_number(part) for part in layers.split(",")]
    net = load_any(NetworkRecipe(name=model))
    try:
        calls = inspect_network(
            net, layers=cast(Layers, chosen), attention=cast(Kind, attention)
        )  # or it refuses
    except (TypeError, ValueError) as error:
        raise CommandError(one_line(error)) from error
    typer.echo(printable_lines(str(calls)))


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
    if launched():
        raise CommandError(
            "demo: expected one process, got a launcher's several; several train with `probattn train`"
        )
    started = time.monotonic()
    loaded = load_recipe("demo", set_ or [])
    folder = output or _free_folder(Path(loaded.output))
    prepared = prepare(loaded)
    typer.echo(printable(f"{loaded.name}: {len(prepared.train):,} training texts, run folder {folder}"))
    with says_how_to_resume(folder):
        train_run(prepared, folder, quiet=quiet)
    typer.echo("evaluating ...")
    results = _evaluate_texts(folder, loaded, None)
    write_results(results, folder / RESULTS)
    show(results_table(results))
    page = write_report(results, folder / REPORT)
    minutes = (time.monotonic() - started) / 60
    typer.echo(printable(f"report: {page.resolve()}  ({minutes:.1f} minutes in all)"))


def _evaluated(runs: list[Path], baseline: Path | None, *, again: bool) -> tuple[Path, AnyResults]:
    """The evaluation of one run, or of several over their seeds, and the file that holds it."""
    if len(runs) > 1:
        check_runs([(run, _any_recipe_of(run)) for run in runs])
        if baseline is not None:
            raise CommandError(
                f"--baseline {baseline}: expected one run with it; several are compared with the baselines within them"
            )
    found = {
        run: _evaluate(run, baseline)
        if again or not (run / RESULTS).exists()
        else read_any_results(run / RESULTS)
        for run in runs
    }
    first = runs[0]
    if len(runs) == 1:
        return first / RESULTS, found[first]
    combined = combine_runs(found)
    return write_results(combined, first / f"{SEEDS}.json"), combined


def _evaluate(run: Path, baseline_run: Path | None) -> AnyResults:
    recipe = _any_recipe_of(run)
    # the baseline within a run has no recipe of its own
    other = (
        recipe
        if baseline_run is None or not (baseline_run / RECIPE).exists()
        else _any_recipe_of(baseline_run)
    )
    if type(other) is not type(recipe):
        raise CommandError(
            f"{baseline_run}: expected a baseline of the same kind as {run}, got another kind of run"
        )
    results: AnyResults
    if isinstance(recipe, TranslationRecipe):
        results = evaluate_translation_run(run, recipe, baseline_run)
    elif isinstance(recipe, GraphRecipe):
        results = evaluate_graph(run, recipe, baseline_run)
    elif isinstance(recipe, ExperimentRecipe):
        results = evaluate_experiment(run, recipe, baseline_run)
    else:
        results = _evaluate_texts(run, recipe, baseline_run)
    write_results(results, run / RESULTS)
    return results


def _evaluate_texts(run: Path, recipe: Recipe, baseline_run: Path | None) -> Results:
    trained = load_model(run)
    if baseline_run is not None and not trained.is_converted:
        raise CommandError(one_to_compare(run, baseline_run))
    baseline = _baseline(run, baseline_run) if trained.is_converted else None
    data = {str(role): item for role, item in recipe.data.load().roles().items()}
    options = EvaluationOptions.of(recipe)
    description = describe_run(run, recipe, trained, len(data["train"]))
    start = load_start(recipe, trained, data["train"]) if trained.compares_heads else None
    return evaluate_run(trained, baseline, data, description, options, start)


def _probed(loaded: AnyRecipe, recipe: str, overrides: list[str]) -> AnyRecipe:
    """The recipe with its section on probes, or with that section's defaults where it has none."""
    if not isinstance(loaded, (Recipe, TranslationRecipe)):
        raise CommandError(
            "--probe: expected a recipe of texts or of translation; this one has no section probe"
        )
    return loaded if loaded.probe is not None else load_any_recipe(recipe, [*overrides, "probe={}"])


def _shown(example: Example) -> dict[str, str | float]:
    given = {"text": example.text} if example.pair is None else {"text": example.text, "pair": example.pair}
    answer = {"probability": example.probability, "spread": example.spread, "entropy": example.entropy}
    return {**given, "label": example.predicted, **answer}


def _check_pairs(run: Path, paired: bool, texts: int, pairs: int) -> None:
    if paired and pairs != texts:
        raise CommandError(
            f"{run}: its network was trained on pairs of texts; expected one --pair for each of the {texts} texts, "
            f"got {pairs}"
        )
    if pairs and not paired:
        raise CommandError(f"{run}: its network was trained on single texts; expected no --pair, got {pairs}")


def _recipe_of(run: Path) -> Recipe:
    return load_recipe(_recipe_file(run))


def _any_recipe_of(run: Path) -> AnyRecipe:
    return load_any_recipe(_recipe_file(run))


def _recipe_file(run: Path) -> str:
    file = run / RECIPE
    if not file.exists():
        raise CommandError(f"{run}: expected a run folder with {RECIPE}, found none")
    return str(file)


def _baseline(run: Path, given: Path | None) -> TrainedModel | None:
    folder = given or run / BASELINE
    if given is None and not (folder / MODEL).is_dir():
        return None
    found = load_model(folder)
    if found.is_converted:
        kind = "Bayesian" if found.is_bayesian else found.key
        raise CommandError(f"{folder}: expected a deterministic run as baseline, its attention is {kind}")
    return found


def _free_folder(folder: Path) -> Path:
    """The folder, or its first numbered sibling that holds nothing."""
    place, number = folder, 2
    while place.exists() and any(place.iterdir()):
        place, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return place


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise CommandError(f"--layers: expected 'all', 'first', 'last' or numbers, got {text!r}") from error
