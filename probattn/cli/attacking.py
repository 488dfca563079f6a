"""Commands that attack runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from probattn.cli.console import show
from probattn.cli.errors import fails_in_one_line
from probattn.cli.options import DeviceOption, JsonOption, QuietOption

commands = typer.Typer()


@commands.command()
@fails_in_one_line
def attack(
    run: Annotated[
        Path, typer.Argument(help="Folder of a finished run of texts, or the folder 'baseline' in one.")
    ],
    attack: Annotated[
        Literal["textfooler", "textbugger", "bae", "deepwordbug", "pruthi"],
        typer.Option(
            help="Words exchanged by vectors, words and characters, words by a language model, characters."
        ),
    ] = "textfooler",
    prediction: Annotated[
        Literal["point", "draws", "moments"],
        typer.Option(help="What is attacked: at the posterior expectation, mean of draws, closed form."),
    ] = "point",
    number: Annotated[int, typer.Option(help="Most texts, a fixed choice.", min=1)] = 200,
    queries: Annotated[int, typer.Option(help="Most queries of the network for a text.", min=2)] = 500,
    seed: Annotated[int, typer.Option(help="Seed of random changes and of draws.", min=0)] = 0,
    num_samples: Annotated[int, typer.Option(help="Posterior draws of a prediction.", min=1)] = 20,
    noise: Annotated[
        Literal["fixed", "fresh"],
        typer.Option(help="Of draws: the same for every query, or new ones, which flatter a network."),
    ] = "fixed",
    data: Annotated[
        str | None,
        typer.Option(
            help="A data set that has a name, such as textfooler_imdb; the run's test texts by default."
        ),
    ] = None,
    vectors: Annotated[
        Path | None, typer.Option(help="Counter-fitted vectors; the usual file by default.")
    ] = None,
    similarity: Annotated[
        float | None,
        typer.Option(help="Least cosine of a word and its replacement (textfooler).", min=0, max=1),
    ] = None,
    tagger: Annotated[
        Literal["textblob", "nltk", "none"], typer.Option(help="What tags parts of speech.")
    ] = "textblob",
    encoder: Annotated[
        str,
        typer.Option(help="Network of sentences: minilm, a folder or a name on the hub; none for no check."),
    ] = "minilm",
    masked_lm: Annotated[
        str | None, typer.Option(help="Masked language model of bae: a folder or a name on the hub.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the records; RUN/attacks by default.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Begin anew; an interrupted attack goes on otherwise.")
    ] = False,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Attack a run's classifier with changed texts (TextAttack); continues an attack that was interrupted."""
    from probattn.attacks import AttackOptions, attack_run, attack_table, read_attack
    from probattn.tasks import devices, progress

    chosen: dict[str, Any] = {} if similarity is None else {"similarity": similarity}
    options = AttackOptions(
        attack=attack,
        prediction=prediction,
        number=number,
        queries=queries,
        seed=seed,
        num_samples=num_samples,
        noise=noise,
        data=data,
        vectors=None if vectors is None else str(vectors),
        tagger=tagger,
        encoder=encoder,
        masked_lm=masked_lm,
        **chosen,
    )
    with _says_how_to_go_on(again), devices.on(device), progress.shown(quiet=quiet):
        file, result = attack_run(run, options, output=output, again=again)
    if as_json:
        typer.echo(result.model_dump_json())
        return
    show(attack_table(result, read_attack(file.with_suffix(".jsonl"))[1]))
    typer.echo(f"results: {file}")


@commands.command()
@fails_in_one_line
def attack_vectors(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; in the user's cache by default.")
    ] = None,
    source: Annotated[
        str, typer.Option(help="Vectors to fit: glove-6b-50d, or a text file, frequent words first.")
    ] = "glove-6b-50d",
    words: Annotated[int, typer.Option(help="Most words, the most frequent ones.", min=2)] = 60_000,
    epochs: Annotated[int, typer.Option(help="Passes over all pairs of words.", min=1)] = 20,
    neighbours: Annotated[
        float, typer.Option(help="Cosine distance within which neighbours are to stay near.", min=0)
    ] = 0.2,
    quiet: QuietOption = False,
) -> None:
    """Make counter-fitted word vectors (synonyms near, antonyms apart), which attacks by words need."""
    from probattn.attacks import CounterFitting, make_vectors
    from probattn.attacks.vectors import fitted_table
    from probattn.tasks import progress

    fitting = CounterFitting(epochs=epochs, neighbours=neighbours)
    with progress.shown(quiet=quiet):
        file, fitted = make_vectors(output, source, most=words, options=fitting)
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


@contextmanager
def _says_how_to_go_on(again: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        command = "the same command without --again" if again else "the same command"
        error.args = (f"{f'{error}; ' if error.args else ''}{command} goes on where it was",)
        raise
