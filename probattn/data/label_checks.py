"""What labels say about themselves: texts with two labels, classes that differ in case alone, blanks around names."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from probattn.checks import shown
from probattn.data.errors import DataWarning
from probattn.data.identity import text_key

MOST = 3
"""Examples that a warning names."""


def contradictions(
    keys: Sequence[str], labels: Sequence[str], wheres: Sequence[str]
) -> dict[str, dict[str, str]]:
    """The texts that have several labels: by their key, each label and where it stands first.

    Example:
        >>> contradictions(["a", "b", "a"], ["x", "x", "y"], ["line 2", "line 3", "line 4"])
        {'a': {'x': 'line 2', 'y': 'line 4'}}
    """
    seen: dict[str, dict[str, str]] = {}
    for key, label, where in zip(keys, labels, wheres, strict=True):
        seen.setdefault(key, {}).setdefault(label, where)
    return {key: first for key, first in seen.items() if len(first) > 1}


def case_variants(names: Iterable[str]) -> list[list[str]]:
    """Names that differ in case or inner blanks alone, those of one class together.

    Example:
        >>> case_variants(["Refund", "lost card", "refund", "Lost  card", "fee"])
        [['Refund', 'refund'], ['Lost  card', 'lost card']]
    """
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(" ".join(name.casefold().split()), []).append(name)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def warn_about_labels(
    source: str, rows: Sequence[Mapping[str, str]], names: Sequence[str], wheres: Sequence[str]
) -> None:
    """Warns of labels that cannot all be right, or of classes that may be one, in a line each.

    Args:
        source: the data, for messages.
        rows: the fields "text", "text_pair" and "label" of each row as they stand there.
        names: the class of each row.
        wheres: the place of each row.
    """
    positions = [where.removeprefix(source).strip() for where in wheres]
    for message in (
        *_blanks([row["label"] for row in rows], positions),
        *_variants(names),
        *_contradicting(rows, names, positions),
    ):
        warnings.warn(f"{source}: {message}", DataWarning, stacklevel=5)


def _blanks(labels: Sequence[str], positions: Sequence[str]) -> Iterator[str]:
    padded = [
        (label, where) for label, where in zip(labels, positions, strict=True) if label != label.strip()
    ]
    if padded:
        examples = _first(f"{shown(label)} in {where}" for label, where in dict(reversed(padded)).items())
        yield (
            f"labels with blanks around them: {len(padded):,} ({examples}); they are read without the blanks: remove "
            "these from the file, which other programs read as further classes"
        )


def _variants(names: Sequence[str]) -> Iterator[str]:
    groups, counts = case_variants(names), Counter(names)
    if groups:
        listed = _first(" and ".join(f"{name!r} ({counts[name]:,})" for name in group) for group in groups)
        frequent = max(groups[0], key=counts.__getitem__)
        renamed = ", ".join(f"{shown(name)}: {shown(frequent)}" for name in groups[0] if name != frequent)
        yield (
            f"classes that differ in case or blanks alone: {listed}; they are different classes: make them one in the "
            f"file, or with `label_map: {{{renamed}}}`"
        )


def _contradicting(
    rows: Sequence[Mapping[str, str]], names: Sequence[str], positions: Sequence[str]
) -> Iterator[str]:
    keys = [text_key(row["text"], row.get("text_pair")) for row in rows]
    repeated = contradictions(keys, names, positions)
    if repeated:
        examples = _first(
            " and ".join(f"{name!r} in {where}" for name, where in labels.items())
            for labels in repeated.values()
        )
        yield (
            f"texts with different labels in different rows: {len(repeated):,} ({examples}); not all of them can be "
            "learned: correct the labels, or leave each text in once"
        )


def _first(examples: Iterable[str]) -> str:
    """The first examples, and whether there are more."""
    listed = list(examples)
    return "; ".join(listed[:MOST]) + ("; ..." if len(listed) > MOST else "")
