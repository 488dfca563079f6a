"""Options of commands are declared once, by a class; the command line has names, defaults, ranges and help from it."""

import ast
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

import probattn.cli
from probattn.attacks import AttackOptions, CounterFitting
from probattn.cli import app
from probattn.cli.options import FileOptions, takes_options
from probattn.comparison import CompareOptions
from probattn.options import Count, DrawingOptions, Natural, Options, Share, SomeOf, hints
from probattn.triage import TriageOptions

COMMANDS = {
    "attack": AttackOptions,
    "attack-vectors": CounterFitting,
    "compare": CompareOptions,
    "predict": DrawingOptions,
    "triage": TriageOptions,
}
LIBRARY = Path(probattn.cli.__file__).parents[1]


@dataclass(frozen=True)
class Toy(Options):
    """Something.

    Args:
        names: what is meant.
        size: how many, unless ``half`` says it. Read the rest elsewhere.
        half: of them.
        fast: whether to hurry.
        keys: further ones.
    """

    names: SomeOf[str]
    size: Count | None = None
    half: Share = 0.5
    fast: bool = False
    keys: Sequence[str] = ()


def toy() -> tuple[typer.Typer, list[Toy]]:
    made: list[Toy] = []
    commands = typer.Typer()

    @commands.command()
    @takes_options
    def work(options: Toy, output: Annotated[str, typer.Option("-o")] = "out") -> None:
        made.append(options)

    return commands, made


def test_fields_are_arguments_and_options() -> None:
    commands, made = toy()
    assert CliRunner().invoke(commands, ["a", "b", "--size", "3", "--fast", "--keys", "x=1"]).exit_code == 0
    assert CliRunner().invoke(commands, ["a"]).exit_code == 0
    assert made == [Toy(("a", "b"), 3, 0.5, True, ("x=1",)), Toy(("a",))]
    for option, value in (("--size", "0"), ("--half", "1.5"), ("--size", "many")):
        done = CliRunner().invoke(commands, ["a", option, value])
        assert done.exit_code == 2 and option in done.output
    options = {item.name: item for item in get_command(commands).params}
    assert options["size"].help == "How many, unless --half says it." and options["half"].default == 0.5


@pytest.mark.parametrize(("name", "kind"), [*COMMANDS.items(), ("predict", FileOptions)])
def test_a_command_has_the_options_of_its_class(name: str, kind: type[Options]) -> None:
    command = get_command(app).commands[name]
    taken = {item.name: item for item in command.params}
    for field, parameter in inspect.signature(kind).parameters.items():
        option, empty = taken[field], parameter.default is inspect.Parameter.empty
        assert option.required == empty and option.help, field
        assert empty or option.default in (parameter.default, parameter.default or None), field


def test_a_second_declaration_beside_the_class_is_refused() -> None:
    def work(options: Toy, size: int = 1) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="duplicate parameter name: 'size'"):
        takes_options(work)


def functions(*folders: str) -> list[tuple[str, ast.FunctionDef]]:
    """Functions of parts of the library with the names of their files."""
    return [
        (f"{file.relative_to(LIBRARY)}:{node.name}", node)
        for folder in folders
        for file in sorted((LIBRARY / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]


def parameters(function: ast.FunctionDef) -> dict[str, str]:
    """Annotations by parameter."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {item.arg: ast.unparse(item.annotation) if item.annotation else "" for item in arguments}


def test_no_command_declares_what_a_class_does() -> None:
    """Commands neither make these classes themselves nor describe options of predictions once more."""
    classes = {kind.__name__ for kind in COMMANDS.values()}
    for name, function in functions("cli"):
        made = {
            node.func.id
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not made & classes, f"{name} makes {made & classes}, which takes_options does"
        described = {
            key
            for key, kind in parameters(function).items()
            if "typer." in kind and key in hints(DrawingOptions)
        }
        assert not described, f"{name} declares {described}, which DrawingOptions does"
        taken = {kind for kind in parameters(function).values() if kind in classes}
        command = function.name.replace("_", "-")
        assert not taken or function.name.startswith("_") or command in {*COMMANDS, "predict-file"}


def test_draws_are_passed_as_one_object() -> None:
    """Nothing from the command line to the networks takes the number of draws, their seed and so on one by one."""
    loose = {"num_samples", "seed", "uncertainty", "chunk_size"}
    for name, function in functions("cli", "triage", "comparison", "tasks"):
        assert len(loose & parameters(function).keys()) < 3, f"{name}: expected a Drawing or DrawingOptions"


def test_defaults_are_checked_by_the_annotations() -> None:
    assert DrawingOptions() == DrawingOptions(num_samples=None, seed=None, uncertainty="draws")
    for field, kind in (("num_samples", Count), ("seed", Natural)):
        assert hints(DrawingOptions)[field] == kind | None
    with pytest.raises(ValueError, match=r"DrawingOptions\.seed: expected an integer >= 0 or None, got -1"):
        DrawingOptions(seed=-1)
