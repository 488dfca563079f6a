"""The command that says which words speak for a network's answer."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probattn.cli.console import echo, fails_in_one_line, import_tasks, wrapped
from probattn.cli.options import DeviceOption, InputOptions, PairOption, takes_options
from probattn.cli.rows import columns_of, format_of, opened
from probattn.data.rows import text_of
from probattn.files.durable import write_atomically
from probattn.terminal import printable_lines

if TYPE_CHECKING:
    from probattn.inference import Explanation

commands = typer.Typer()
MARKED = re.compile(r"\[([+-])\S+?\]")
"""A word that :class:`probattn.inference.Explanation` lists, in its text."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Which words speak for the answer</title>
<style>body {{ font: 1rem/1.7 system-ui, sans-serif; margin: 2rem auto; max-width: 46rem; padding: 0 1rem }}
section {{ border-top: 1px solid #ccc; padding: .5rem 0 }}
td, th {{ padding: 0 1rem 0 0; text-align: left; vertical-align: top }}</style></head>
<body><h1>Which words speak for the answer</h1>
<p>One word at a time is left out of what the network attends to. Blue, underlined: the answer is then less probable.
Orange, dotted: more probable. The words of doubt add to the entropy of the answer.</p>
{sections}
</body></html>
"""


@commands.command()
@fails_in_one_line
@takes_options
def explain(
    network: Annotated[
        str, typer.Argument(help="Folder of a run, or a classifier of texts: a folder or a name on the hub.")
    ],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to explain; or --input.")] = None,
    pair: PairOption = None,
    *,
    file: InputOptions,
    html: Annotated[
        Path | None, typer.Option(help="File of a page with all texts, in place of lines.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: DeviceOption = None,
) -> None:
    """Say which words speak for an answer, which against it, and which make it unsure; no training is needed."""
    from probattn.tasks import RunError

    if html is not None and as_json:
        raise RunError("explain: expected --html or --json, got both")
    file.check("explain", texts, pair)
    firsts, seconds = (list(texts or []), pair) if file.input is None else _read(file, network)
    import_tasks()
    from probattn.tasks import devices

    with devices.on(device):
        explanations = explained(network, firsts, seconds)
    if html is not None:
        sections = "\n".join(f"<section>{item.to_html()}</section>" for item in explanations)
        write_atomically(html, PAGE.format(sections=sections).encode())
        echo(f"page: {html}")
    for item in () if html is not None else explanations:
        typer.echo(json.dumps(item.to_dict())) if as_json else print_explanation(item)


def _trained_columns(recipe: Path) -> tuple[str, str | None]:
    """The columns of texts that a run was trained with; the usual one of what is no run of a file."""
    import yaml

    content = yaml.safe_load(recipe.read_text("utf-8")) if recipe.is_file() else {}
    train = content.get("data", {}).get("train")
    if isinstance(train, dict) and "text" in train:
        return train["text"], train.get("text_pair")
    return "text", None


def explained(network: str, firsts: list[str], seconds: list[str] | None) -> list[Explanation]:
    """Explanations of texts by a run's network, or another."""
    from probattn.inference import explain as explain_texts
    from probattn.recipes import NetworkRecipe
    from probattn.tasks import RunError, run_task
    from probattn.tasks.classification.networks import load_any, load_tokenizer
    from probattn.tasks.errors import one_line
    from probattn.tasks.networks import check_finished, on_device

    folder, max_length = Path(network), None
    if (folder / "recipe.yaml").exists():
        max_length = getattr(getattr(run_task(folder).recipe, "data", None), "max_length", None)
        network = str(check_finished(folder))
    recipe = NetworkRecipe(name=network)
    net, tokenizer = on_device(load_any(recipe)), load_tokenizer(recipe)
    try:
        return explain_texts(net, tokenizer, firsts, seconds, max_length=max_length)
    except (IndexError, TypeError, ValueError) as error:
        raise RunError(f"{network}: {one_line(error)}") from error


def _read(file: InputOptions, network: str) -> tuple[list[str], list[str] | None]:
    """The texts of a file, and the second ones."""
    path, trained = str(file.input), _trained_columns(Path(network) / "recipe.yaml")
    firsts, seconds = [], []
    with opened(path, format_of(path, file.format, "--format"), file.text_column or trained[0]) as table:
        column, pair = columns_of(table, file, trained)
        for location, row in table.rows:
            firsts.append(text_of(row.get(column), column, location))
            if pair is not None:
                seconds.append(text_of(row.get(pair), pair, location))
    return firsts, None if pair is None else seconds


def print_explanation(explanation: Explanation) -> None:
    """The text with its words marked, in colour on a terminal that has any."""
    plain = wrapped(printable_lines(str(explanation)), sys.stdout)
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    typer.echo(MARKED.sub(_styled, plain) if coloured else plain)
    typer.echo()


def _styled(mark: re.Match[str]) -> str:
    return typer.style(mark[0], fg=typer.colors.BLUE if mark[1] == "+" else typer.colors.YELLOW, bold=True)
