"""Tables of docs/data/families.json, which `tests/benchmarks/every_family.py` writes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from measured_tables.markdown import table

SOURCE = "tests/benchmarks/every_family.py"
VERDICTS = {
    "equal": "the converted network equals the original",
    "refused": "refused with an error; the network is unchanged",
    "wrong": "the converted network differs from the original",
    "not built": "no tiny network of the class could be built",
}


def tables(content: Mapping[str, Any]) -> str:
    """How many classes and families have each verdict, then every family with its classes."""
    classes = content["classes"]
    counts = Counter(each["verdict"] for each in classes)
    families = {
        verdict: {each["family"] for each in classes if each["verdict"] == verdict} for verdict in VERDICTS
    }
    counted = [
        [verdict, meaning, str(counts[verdict]), str(len(families[verdict]))]
        for verdict, meaning in VERDICTS.items()
    ]
    whole = f"{len(classes)} model classes of {len({each['family'] for each in classes})} families"
    parts = [
        f"transformers {content['transformers']}: {whole}.",
        table(["verdict", "meaning", "classes", "families with such classes"], counted),
    ]
    for verdict, meaning in VERDICTS.items():
        if counts[verdict]:
            parts += [f"**{verdict}**: {meaning}.", _listed(verdict, classes)]
    return "\n\n".join(parts)


def _listed(verdict: str, classes: Iterable[Mapping[str, Any]]) -> str:
    """A row for the classes of a family that share kinds of attention and reason."""
    rows = []
    chosen = [each for each in classes if each["verdict"] == verdict]
    for family, members in groupby(chosen, key=lambda each: each["family"]):
        alike: dict[tuple[str, str], list[str]] = {}
        for each in members:
            what = ", ".join(each["kinds"]), _cell(each["reason"], each["name"])
            alike.setdefault(what, []).append(each["name"])
        for (kinds, reason), names in alike.items():
            rows.append([family, ", ".join(names), kinds if verdict == "equal" else reason])
    return table(_head(verdict), rows)


def _head(verdict: str) -> Sequence[str]:
    return ["family", "classes", "attention" if verdict == "equal" else "reason"]


def _cell(reason: str, name: str) -> str:
    """A reason without the name of its class, which stands beside it, in a cell of a table."""
    words = reason.removeprefix(f"{name}: ")
    return f"`{words.replace('|', '/').replace('`', '')}`"
