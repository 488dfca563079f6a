"""Recipes to start from, every key with what it means: those of the library, and one for a file of texts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from probattn.cli.overview import heading_comment
from probattn.cli.rows import ENDINGS, Table, opened
from probattn.data import DataError
from probattn.files.durable import write_atomically
from probattn.recipes import Recipe
from probattn.tasks.errors import RunError
from probattn.tasks.registry import built_in_recipes, load_any_recipe
from probattn.tasks.sections.methods import with_registered
from probattn.tasks.sections.problems import allowed, entries, section
from probattn.tasks.sections.yaml_nodes import RecipeDumper

WIDTH = 100
"""Columns of a comment."""
SAMPLE = 2000
"""Rows of a file that are looked at."""
MOST_CLASSES = 100
"""Most different values of a column that is taken for labels."""
TEXTS = ("text", "sentence", "message", "review", "comment", "content", "body", "question", "title")
PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "answer"),
    ("question", "sentence"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("text", "text_pair"),
)
"""Usual names of the columns of pairs of texts."""
LABELS = ("label", "class", "category", "target", "sentiment", "intent", "topic", "department", "y")
"""Usual names of columns, which take precedence over their content."""


def write_recipe(
    source: str, output: Path | None, text: str | None, label: str | None, pair: str | None
) -> tuple[Path, str | None]:
    """Writes a commented recipe, from a built-in recipe or a file of texts; returns its path and a description."""
    name = Path(source).stem
    place = Path(f"{name}.yaml") if output is None else output
    if place.suffix not in {".yaml", ".yml"}:
        raise RunError(f"--output {place}: expected a file that ends in .yaml or .yml")
    if place.exists():
        raise RunError(
            f"{place}: expected a new file, it is there already; name another with --output, or remove it"
        )
    description = None
    if Path(source).suffix.lower() in ENDINGS:
        recipe, description = _recipe_of(source, place.stem, text, label, pair)
        head = f"A recipe for {Path(source).name}: {description}."
    else:
        recipe = load_any_recipe(source)
        head = heading_comment(built_in_recipes()[source].read_text(encoding="utf-8"))
    write_atomically(place, commented(recipe, head).encode())
    return place, description


def commented(recipe: BaseModel, head: str) -> str:
    """A recipe as YAML with every key, each under what it takes and means."""
    return "\n".join([*_comment(head, 0), "", *_keys(recipe, 0)]) + "\n"


def _keys(model: BaseModel, depth: int, *, explained: bool = True) -> Iterator[str]:
    """Lines of a section; of sections with free names the first alone is explained."""
    indent = "  " * depth
    for place, (name, field) in enumerate(type(model).model_fields.items()):
        value, within = getattr(model, name), section(field.annotation)
        if place and not depth:
            yield ""
        if explained:
            yield from _comment(_meaning(field), depth)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _keys(value, depth + 1, explained=explained)
        elif entries(field.annotation) is not None:
            yield f"{indent}{name}:"
            for number, (each, entry) in enumerate(value.items()):
                yield f"{indent}  {_plain(each)}:"
                yield from _keys(entry, depth + 2, explained=explained and number == 0)
        else:
            if within is not None and explained:
                yield from (f"{indent}#   {line}" for line in _defaults(name, within))
            yield f"{indent}{name}: {_plain(value)}"


def _meaning(field: FieldInfo) -> str:
    """Meaning of a key, and its values where they are not plain."""
    takes, description = allowed(field), field.description or ""
    if section(field.annotation) or entries(field.annotation) or takes in {"text", "text or null"}:
        return description
    return f"{description} Takes {takes}."


def _defaults(name: str, kind: type[BaseModel]) -> list[str]:
    """A section that is left out, as it would be with its defaults; nothing where some keys have none."""
    if any(field.is_required() for field in kind.model_fields.values()):
        return []
    text: str = yaml.dump({name: kind().model_dump()}, Dumper=RecipeDumper, sort_keys=False)
    return text.splitlines()


def _plain(value: Any) -> str:
    """A value in the one-line form of YAML."""
    text: str = yaml.dump(
        value, Dumper=RecipeDumper, default_flow_style=True, allow_unicode=True, width=10**6
    )
    return text.removesuffix("...\n").strip()


def _comment(text: str, depth: int) -> list[str]:
    sign = f"{'  ' * depth}# "
    return textwrap.wrap(
        " ".join(text.replace("`", "").split()),
        WIDTH,
        initial_indent=sign,
        subsequent_indent=sign,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _recipe_of(
    source: str, name: str, text: str | None, label: str | None, pair: str | None
) -> tuple[Recipe, str]:
    """A recipe for a file of texts and labels, and what was recognised in it."""
    kind = ENDINGS[Path(source).suffix.lower()]
    if kind == "txt":
        raise DataError(
            f"{source}: expected a file with a column of texts and one of labels (.csv, .tsv, .jsonl), got plain text"
        )
    with opened(source, kind) as table:
        rows = [row for _, row in islice(table.rows, SAMPLE)]
        text, pair = _pair_columns(table, text, pair)
        text = text or _text_column(table, rows)
        table.check_column(text, "--text-column")
        if pair is not None:
            table.check_column(pair, "--pair-column")
        label = label or _label_column(table, rows, (text, pair))
        table.check_column(label, "--label-column")
    counts: dict[str, int] = {}
    for row in rows:
        counts[str(row.get(label))] = counts.get(str(row.get(label)), 0) + 1
    data = {"train": {"source": source, "text": text, "text_pair": pair, "label": label}}
    training = {"length_pool": 20}  # texts of a file differ in length
    recipe = (
        with_registered(Recipe).model_validate({"name": name, "data": data, "training": training}).resolved()
    )
    classes = ", ".join(f"{each} ({number})" for each, number in sorted(counts.items()))
    rows_seen = f"the first {SAMPLE:,} rows" if len(rows) == SAMPLE else f"{len(rows):,} rows"
    texts = (
        f"column {text!r} of texts, "
        if pair is None
        else f"columns {text!r} and {pair!r} of pairs of texts, "
    )
    return recipe, f"{texts}column {label!r} of labels with {classes} in {rows_seen}"


def _pair_columns(table: Table, text: str | None, pair: str | None) -> tuple[str | None, str | None]:
    """Columns of pairs with usual names, as far as they are not given; None for what is not recognised.

    Texts of a given column are single ones unless the second is given too.
    """
    if text is not None:
        return text, pair
    names = {name.lower(): name for name in table.columns}
    for first, second in PAIRS:
        if first in names and second in names:
            columns = names[first], names[second]
            if text in {None, columns[0]} and pair in {None, columns[1]}:
                return columns
    return text, pair


def _text_column(table: Table, rows: Sequence[dict[str, Any]]) -> str:
    """A column of a usual name, or else the one of the longest texts."""
    usual_name = next((name for usual in TEXTS for name in table.columns if name.lower() == usual), None)
    return usual_name or max(table.columns, key=lambda name: sum(len(str(row.get(name))) for row in rows))


def _label_column(table: Table, rows: Sequence[dict[str, Any]], texts: Sequence[str | None]) -> str:
    """A column of a usual name, or else the one of fewest different values, which stand there twice or more."""
    others = [name for name in table.columns if name not in texts]
    usual_name = next((name for usual in LABELS for name in others if name.lower() == usual), None)
    if usual_name is not None:
        return usual_name
    different = {name: len({str(row.get(name)) for row in rows}) for name in others}
    most = min(MOST_CLASSES, len(rows) // 2)
    candidates = [name for name in others if 2 <= different[name] <= most]
    if not candidates:
        listed = (
            ", ".join(f"{name!r} ({number} different values)" for name, number in different.items()) or "none"
        )
        raise DataError(
            f"{table.name}: expected a column of labels beside {texts[0]!r}, with 2 to {most} different values, got "
            f"{listed}; name the columns with --text-column and --label-column"
        )
    return min(candidates, key=different.__getitem__)
