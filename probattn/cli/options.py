"""Arguments and options of commands: those that several have, and those that classes of options declare."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge, Le

from probattn.checks import no_run
from probattn.files.spreadsheets import Escape
from probattn.options import DrawingOptions, OpenShare, Options, descriptions, hints
from probattn.terminal import printable

SENTENCE = re.compile(r"(?<!\bal)(?<!\bFig)\.(?=\s|$)(?!\s+[a-z0-9(])")
"""The full stop that ends a sentence."""


@dataclass(frozen=True)
class InputOptions(Options):
    """A file of texts.

    Args:
        input: a .csv, .tsv, .xlsx, .jsonl or .txt file of texts, or - for standard input.
        format: format of `input`: csv, tsv, jsonl or txt (a text a line).
        text_column: column of the texts in `input`; the recipe's by default, or text.
        pair_column: column of the second texts in `input`; the recipe's by default.
    """

    input: str | None = None
    format: str | None = None
    text_column: str | None = None
    pair_column: str | None = None

    def check(self, command: str, texts: Sequence[str] | None, pair: Sequence[str] | None) -> None:
        """Raises :class:`RunError` unless there are texts or a file, and what goes with it alone."""
        from probattn.tasks import RunError

        if (self.input is None) == (not texts):
            got = "neither" if self.input is None else "both"
            raise RunError(f"{command}: expected texts, or a file of them with --input, got {got}")
        if self.input is not None and pair:
            raise RunError(
                "--pair: expected no such option beside --input, whose --pair-column has the texts"
            )
        names = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        if self.input is None and names:
            option = names[0].replace("_", "-")
            raise RunError(f"--{option}: expected --input with it, got texts on the command line")


@dataclass(frozen=True)
class FileOptions(InputOptions):
    """A file of texts to predict.

    Args:
        output: file of the rows of `input` with the predictions as further columns, in the format of its ending; it is
            written, or replaced, when all rows are predicted. Standard output by default.
        escape: cells of a .csv or .tsv that a spreadsheet would take for a formula get an apostrophe: the words of
            predictions, all cells (which are read without it), or none.
        audit: with a policy, share of the answers that is drawn at random for people to check; `probattn review` tests
            the guarantee on them.
        label_studio: with a policy, file of the inputs for human review as tasks of Label Studio; its configuration is
            written beside it.
    """

    output: Path | None = None
    escape: Escape = "words"
    audit: OpenShare | None = None
    label_studio: Path | None = None


SHORT = {"input": ("-i",), "output": ("-o",)}
"""Short names of options."""


def output_option(text: str, *names: str) -> Any:
    """What the command line shows of a folder or a file that a command writes, by default with --output."""
    return typer.Option(*(names or ("--output", "-o")), help=text)


def first_sentence(text: str) -> str:
    """The beginning of a text up to its first full stop, on one line.

    Example:
        >>> first_sentence("Zhang et al. 2021: attention. More of it.")
        'Zhang et al. 2021: attention.'
    """
    line = " ".join(text.split())
    end = SENTENCE.search(line)
    return line if end is None else line[: end.end()]


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces each parameter that is a class of options by the options of a command line that its fields declare."""
    signature, types = inspect.signature(command), get_type_hints(command, include_extras=True)
    kinds = {
        name: kind for name, kind in types.items() if isinstance(kind, type) and issubclass(kind, Options)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in kinds:
            parameters += _parameters(kinds[name])
        else:
            parameters.append(parameter.replace(annotation=types[name], kind=parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def filled(**values: Any) -> None:
        for name, kind in kinds.items():
            entries = {field: values.pop(field) for field in hints(kind)}
            try:
                values[name] = kind(**{field: value for field, value in entries.items() if value is not None})
            except ValueError as problem:
                from probattn.tasks import RunError

                words = re.sub(r"^[A-Za-z]+Options[.]", "", str(problem))
                field, _, expected = words.partition(": ")
                if entries.get(field) is not None:
                    words = f"--{field.replace('_', '-')}: {expected.replace(' or None, got', ', got', 1)}"
                raise RunError(f"{command.__name__}: {words}") from problem
        command(**values)

    vars(filled)["__signature__"] = signature.replace(parameters=parameters)
    filled.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return filled


def _parameters(kind: type[Options]) -> Iterator[inspect.Parameter]:
    """The parameters of a command that the fields of a class declare, in the order of its constructor."""
    for name, field in inspect.signature(kind).parameters.items():
        plain, default = _plain(hints(kind)[name]), None if field.default == () else field.default
        yield field.replace(
            annotation=Annotated[plain, _declared(kind, name)], default=default, kind=field.KEYWORD_ONLY
        )


def _declared(kind: type[Options], name: str) -> Any:
    """What the command line shows of a field."""
    names, bounds = hints(kind), {type(item): item for item in _constraints(hints(kind)[name])}
    sentence = first_sentence(descriptions(kind)[name])
    text = re.sub(r"`(\w+)`", lambda match: f"--{match[1]}" if match[1] in names else match[0], sentence)
    if inspect.signature(kind).parameters[name].default is inspect.Parameter.empty:
        return typer.Argument(help=text)
    low, high = bounds.get(Ge), bounds.get(Le)
    return typer.Option(
        f"--{name.replace('_', '-')}",
        *SHORT.get(name, ()),
        help=text,
        min=None if low is None else low.ge,
        max=None if high is None else high.le,
    )


def _plain(annotation: Any) -> Any:
    """A type as typer takes it: without constraints, with lists for sequences."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain(arguments[0])
    if origin in (Union, UnionType):
        return functools.reduce(lambda one, other: one | other, map(_plain, arguments))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return GenericAlias(list, (_plain(arguments[0]),))
    return annotation


def _constraints(annotation: Any) -> Iterable[Any]:
    """The bounds of a number, or of one of the members of a union."""
    for argument in get_args(annotation):
        yield from _constraints(argument)
    yield from getattr(annotation, "__metadata__", ())


def are_runs(value: Any) -> Any:
    """Refuses folders without a recipe before anything large is imported."""
    for run in value if isinstance(value, list) else [value]:
        folders = [run, run.parent] if run.name == "baseline" else [run]
        if not any((folder / "recipe.yaml").exists() for folder in folders):
            typer.echo(f"error: {printable(no_run(run))}", err=True)
            raise typer.Exit(2)
    return value


def run_argument(text: str) -> Any:
    """What the command line shows of an argument that is a folder of a run, or several."""
    return typer.Argument(help=text, callback=are_runs)


RunArgument = Annotated[Path, run_argument("Folder of a finished run.")]
RunsArgument = Annotated[
    list[Path], run_argument("Folder of a finished run, or of several: one recipe, a seed each.")
]
PairOption = Annotated[
    list[str] | None,
    typer.Option("--pair", help="The second text of a pair, one for each text, in their order."),
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
    typer.Option(
        help="Maximum number of examples of each data set, a fixed random sample; recorded in metrics.json.",
        min=1,
    ),
]
SamplesOption = Annotated[int | None, _declared(DrawingOptions, "num_samples")]
