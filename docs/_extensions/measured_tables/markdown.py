"""What all tables are written with."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells."""
    lines = [head, ["---"] * len(head), *rows]
    if any(len(cells) != len(head) for cells in lines):
        raise ValueError(f"expected {len(head)} cells in every row, as {list(head)} has, got {lines[2:]}")
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def narrow(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose rows become columns where there are more than eight columns and fewer rows."""
    lines: list[Sequence[str]] = [head, *rows]
    if len(head) > max(8, len(lines)):
        lines = [*zip(*lines, strict=True)]
    return table(lines[0], lines[1:])


def interval(found: Mapping[str, Any] | None, form: str, *, scale: float = 1.0, strong: bool = False) -> str:
    """`mean [low, high]` of `scale` times a figure; the mean alone where it has no bounds, nothing without a figure."""
    if found is None:
        return ""
    mean, low, high = (
        None if found[name] is None else format(scale * found[name], form) for name in ("mean", "low", "high")
    )
    words = f"**{mean}**" if strong else f"{mean}"
    return words if low is None else f"{words} [{low}, {high}]"
