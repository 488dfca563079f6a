"""Recipes to start from, for the columns that a file has; tables of recipes and of attention methods."""

from __future__ import annotations

import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from probattn.checks import shortened, shown
from probattn.cli.options import first_sentence
from probattn.cli.rows import ENDINGS, Table, opened
from probattn.data import DataError, read_table
from probattn.data.rows import NUMBER, Columns, class_names
from probattn.files.durable import write_atomically
from probattn.recipes import Recipe
from probattn.report import Group, Sheet
from probattn.sites import METHODS
from probattn.tasks.errors import RunError
from probattn.tasks.registry import built_in_recipes, load_any_recipe, load_task
from probattn.tasks.sections.base import absolute, run_name
from probattn.tasks.sections.keys import allowed, entries, section
from probattn.tasks.sections.methods import with_registered
from probattn.tasks.sections.yaml_nodes import RecipeDumper

WIDTH = 100
"""Columns of a comment."""


BRIEF = {
    "name": "the run's folder is runs/NAME",
    "network.name": "minilm, a folder, or a name on the hub (google-bert/bert-base-uncased)",
    "data.train.source": "",
    "data.train.text": "column of the texts",
    "data.train.text_pair": "column of the second texts",
    "data.train.label": "column of the labels",
    "data.out_of_domain": "a file of texts that the network should not answer, without labels; null: none",
    "data.max_length": "tokens; longer texts are truncated",
    "attention.method": "deterministic; babn or bam: a posterior of the attention weights beside it",
    "training.epochs": "passes over the training texts",
    "training.batch_size": "texts of a step",
    "training.learning_rate": "for minilm; encoders of BERT's size take 2e-5 to 5e-5",
    "training.length_pool": "batches from which texts of one length are put together",
}
"""Keys of a short recipe and what they mean; those that are null are left out, but for files to add."""


def write_recipe(
    source: str,
    output: Path | None,
    text: str | None,
    label: str | None,
    pair: str | None,
    *,
    full: bool = False,
) -> list[str]:
    """Writes a recipe for a file of texts, or from a recipe, which has every key; returns what to say of it."""
    path = Path(f"{run_name(Path(source).stem)}.yaml") if output is None else output
    if path.suffix not in {".yaml", ".yml"}:
        raise RunError(f"--output {path}: expected a file that ends in .yaml or .yml")
    if path.exists():
        raise RunError(
            f"{path}: expected a new file, it is there already; name another with --output, or remove it"
        )
    lines, trainable = [], True
    if Path(source).suffix.lower() in ENDINGS:
        columns = recognise(source, text, label, pair)
        recipe: BaseModel = _recipe_of(source, run_name(path.stem), columns)
        head, trainable = f"A recipe for {Path(source).name}: {columns.description}.", columns.trainable
        lines = [f"recognised: {columns.description}", *(f"note: {line}" for line in columns.remarks)]
    else:
        recipe = load_any_recipe(source)
        file = built_in_recipes().get(source, Path(source))
        head = heading_comment(file.read_text(encoding="utf-8"))
        full = True
    content = commented(recipe, head) if full else brief(recipe, [head, FULL])
    write_atomically(path, content.encode())
    command = [f"next: probattn train {shlex.quote(str(path))}"] if trainable else []
    return [*lines, f"recipe: {path}", *command]


def _recipe_of(source: str, name: str, columns: Recognised) -> Recipe:
    """A recipe for a file of texts and labels."""
    names = {"text": columns.text, "text_pair": columns.pair, "label": columns.label}
    data = {"train": {"source": absolute(source), **names}}
    # Of the small encoder, which needs larger steps than one of BERT's size; texts of a file differ in length.
    training = {"length_pool": 20, "epochs": 4, "learning_rate": 3e-4}
    content = {"name": name, "data": data, "training": training, "attention": {"method": "deterministic"}}
    return with_registered(Recipe).model_validate(content).resolved()


FULL = "All keys: `probattn init FILE --full`."


def brief(recipe: BaseModel, heads: Sequence[str]) -> str:
    """The keys that are changed most, each with a word on it."""
    lines = [line for head in heads for line in _comment(head, 0)]
    before: tuple[str, ...] = ()
    for path, meaning in BRIEF.items():
        *sections, name = path.split(".")
        value: Any = recipe
        for key in (*sections, name):
            value = getattr(value, key)
        if value is None and name != "out_of_domain":
            continue
        shared = [one == other for one, other in zip(sections, before, strict=False)].count(True)
        lines += [f"{'  ' * depth}{sections[depth]}:" for depth in range(shared, len(sections))]
        text = f"{'  ' * len(sections)}{name}: {_plain(value)}"
        lines.append(f"{text:<34}  # {meaning}" if meaning else text)
        before = tuple(sections)
    return "\n".join(lines) + "\n"


def commented(recipe: BaseModel, head: str) -> str:
    """A recipe as YAML with every key, each under what it takes and means."""
    return "\n".join([*_comment(head, 0), "", *_keys(recipe, 0)]) + "\n"


def _keys(model: BaseModel, depth: int, *, explained: bool = True) -> Iterator[str]:
    """Lines of a section; of sections with free names the first alone is explained."""
    indent = "  " * depth
    for index, (name, field) in enumerate(type(model).model_fields.items()):
        value, within = getattr(model, name), section(field.annotation)
        if index and not depth:
            yield ""
        if explained:
            yield from _comment(_meaning(field), depth)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _keys(value, depth + 1, explained=explained)
        elif entries(field.annotation) is not None:
            yield f"{indent}{name}:"
            for number, (item, entry) in enumerate(value.items()):
                yield f"{indent}  {_plain(item)}:"
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


def heading_comment(text: str) -> str:
    r"""The comment at the head of a YAML file, without its signs.

    Example:
        >>> heading_comment("# One,\n# two.\ndata: {}  # three")
        'One, two.'
    """
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def recipes_table() -> Sheet:
    """Recipes that come with the library, by task."""
    tasks: dict[str, list[tuple[str, str]]] = {}
    for name, file in sorted(built_in_recipes().items()):
        summary = first_sentence(heading_comment(file.read_text(encoding="utf-8")))
        kind = type(load_task(name)).__name__.removesuffix("Task")
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).capitalize()  # "GraphText" is "Graph text"
        tasks.setdefault(words, []).append((name, summary))
    return Sheet(
        ("recipe", "purpose"),
        tuple(Group(task, tuple(rows)) for task, rows in tasks.items()),
        words=2,
        notes=("`probattn init RECIPE` writes one into a file of your own, every key with what it means.",),
    )


def methods_table() -> Sheet:
    """Attention methods, by their section of a recipe."""
    rows = tuple(
        (method.section, method.__name__, first_sentence(inspect.getdoc(method) or "").replace("``", "`"))
        for method in METHODS
    )
    return Sheet(
        ("section of a recipe", "class", "purpose"),
        (Group("", rows),),
        words=3,
        notes=("`probattn init RECIPE` writes the keys of each section, with what they mean.",),
    )


SAMPLE = 2000
"""Rows of a file by which columns are recognised."""
MOST_CLASSES = 200
"""Most different values of a column that is taken for labels."""
LISTED = 12
"""Classes, or further columns, that are listed."""
NAME = 60
"""Characters of a class's name in a list."""
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
LABELS = ("label", "class", "category", "target", "gold", "sentiment", "intent", "topic", "department", "y")
"""Usual names of columns, which take precedence over their content."""


class Recognised(NamedTuple):
    """The columns of a file, in words too, remarks on them, a line each, and whether training takes its labels."""

    text: str
    pair: str | None
    label: str
    description: str
    remarks: tuple[str, ...]
    trainable: bool


def recognise(source: str, text: str | None, label: str | None, pair: str | None) -> Recognised:
    """The columns of a file of texts and labels, as far as they are not named; ``DataError`` where one is missing."""
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
        values = {name: _values(rows, name) for name in table.columns if name not in (text, pair)}
        candidates = [] if label else _label_columns(table, values, text, len(rows))
        label = label or candidates[0]
        table.check_column(label, "--label-column")
    counts, remarks = _classes(source, text, pair, label)
    size = f"{sum(counts.values()):,} rows"
    trainable = bool(counts)
    if not trainable:
        counts = {name: values[label].count(name) for name in class_names(values[label])}
        size = f"the first {SAMPLE:,} rows" if len(rows) == SAMPLE else f"{len(rows):,} rows"
    texts = (
        f"column {shown(text)} of texts"
        if pair is None
        else f"columns {shown(text)} and {shown(pair)} of pairs of texts"
    )
    description = f"{texts}, column {shown(label)} of labels with {_counted(counts)} in {size}"
    others = [_column_in_words(name, values[name]) for name in candidates[1:]]
    other_columns = (
        f"other columns that may be the labels: {_first(others)}; choose one with --label-column, or with "
        "data.train.label in the recipe"
    )
    return Recognised(
        text, pair, label, description, (*([other_columns] if others else []), *remarks), trainable
    )


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """The labels that a column has, as text; empty ones are left out."""
    cells = (row.get(name) for row in rows)
    return [cell for cell in ("" if value is None else str(value).strip() for value in cells) if cell]


def _classes(source: str, text: str, pair: str | None, label: str) -> tuple[dict[str, int], list[str]]:
    """Rows of each class as training reads them, none where it refuses the file; and what is odd about them."""
    try:
        counts = read_table(source, Columns(text, label, text_pair=pair)).require_classes().counts()
    except DataError as error:
        return {}, [
            f"training refuses these labels: {shortened(str(error))}; --label-column names another column"
        ]
    single = [shown(name) for name, count in counts.items() if count == 1]
    if single:
        remark = (
            f"{len(single):,} of {len(counts):,} classes have one row ({_first(single)}), to learn from or to measure "
            "on, not both: add rows, join classes with label_map, or name another column with --label-column"
        )
    elif len(counts) > 2 and all(NUMBER.fullmatch(name) for name in counts):
        remark = (
            f"the labels are numbers ({min(counts, key=float)} to {max(counts, key=float)}), learned as classes "
            "without an order; ratings are for a recipe of numbers, with a section `regression`"
        )
    else:
        return counts, []
    return counts, [remark]


def _counted(counts: Mapping[str, int]) -> str:
    """Classes with their rows, in order; of many the largest."""
    if len(counts) <= LISTED:
        return ", ".join(f"{shortened(name, NAME)} ({number:,})" for name, number in counts.items())
    largest = sorted(counts, key=lambda name: -counts[name])[: LISTED // 2]
    listed = ", ".join(f"{shortened(name, NAME)} ({counts[name]:,})" for name in largest)
    return f"{len(counts):,} classes, {listed} and {len(counts) - len(largest):,} more,"


def _first(items: Sequence[str]) -> str:
    return ", ".join(items[: LISTED // 2]) + (", ..." if len(items) > LISTED // 2 else "")


def _column_in_words(name: str, values: Sequence[str]) -> str:
    different = set(values)
    if all(map(NUMBER.fullmatch, different)):
        numbers = sorted(different, key=float)
        return f"{shown(name)} ({len(different):,} numbers, {numbers[0]} to {numbers[-1]})"
    return f"{shown(name)} ({len(different):,} values)"


def _pair_columns(table: Table, text: str | None, pair: str | None) -> tuple[str | None, str | None]:
    """Columns of pairs with usual names, unless that of the texts is given; None for what is not recognised."""
    if text is not None:
        return text, pair
    names = {name.lower(): name for name in table.columns}
    for first, second in PAIRS:
        if first in names and second in names and pair in {None, names[second]}:
            return names[first], names[second]
    return text, pair


def _text_column(table: Table, rows: Sequence[Mapping[str, Any]]) -> str:
    """A column of a usual name, or else the one of the longest texts."""
    usual_name = next((name for usual in TEXTS for name in table.columns if name.lower() == usual), None)
    return usual_name or max(table.columns, key=lambda name: sum(len(str(row.get(name))) for row in rows))


def _label_columns(table: Table, values: Mapping[str, Sequence[str]], text: str, rows: int) -> list[str]:
    """The columns that may be the labels: of a usual name or of few different values, the likeliest first."""
    different = {name: set(column) for name, column in values.items()}
    limit = min(MOST_CLASSES, rows // 2)

    def rank(name: str) -> tuple[int, int, int, int]:
        words = re.findall(r"[^\W_]+", name.lower())
        exact = next((order for order, usual in enumerate(LABELS) if name.lower() == usual), len(LABELS))
        named = exact < len(LABELS) or bool(set(words) & set(LABELS))
        fractions = any(
            NUMBER.fullmatch(value) and not float(value).is_integer() for value in different[name]
        )
        return exact, not named, fractions, len(different[name])

    candidates = [name for name in different if 2 <= len(different[name]) <= limit or name.lower() in LABELS]
    if not candidates:
        listed = (
            ", ".join(f"{name!r} ({len(cells)} different values)" for name, cells in different.items())
            or "none"
        )
        raise DataError(
            f"{table.name}: expected a column of labels beside {text!r}, with 2 to {limit} different values, got "
            f"{listed}; name the columns with --text-column and --label-column"
        )
    return sorted(candidates, key=rank)
