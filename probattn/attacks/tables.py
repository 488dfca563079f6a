"""Attacks as tables for a terminal."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import scipy
from pydantic import TypeAdapter

from probattn.attacks.records import AttackedText, AttackResult
from probattn.files.json_files import JSONError, read_json
from probattn.report import Group, Sheet
from probattn.tasks.errors import RunError
from probattn.tasks.task import BASELINE

ATTACKS = "attacks"
"""Folder of the records in that of the run."""
SHOWN = 2
"""Texts that :func:`attack_table` shows."""
MEASURES = ("failed", "accuracy", "accuracy_attacked")


def attack_table(result: AttackResult, attacks: Sequence[AttackedText] = ()) -> Sheet:
    """The figures of one attack, and the first texts that it changed with success below them."""
    summary, settings = result.summary, result.settings
    figures = (
        ("attacks that failed", str(summary.failed)),
        ("accuracy before", str(summary.accuracy)),
        ("accuracy after", str(summary.accuracy_attacked)),
        ("attacks without a query left", f"{summary.exhausted:,} of {summary.failed.of:,}"),
        ("queries of an attack, mean", _number(summary.queries, ".1f")),
        ("words changed with success, mean", _number(summary.changed, ".1%")),
    )
    title = f"{settings['attack']}, prediction {settings['prediction']}, {summary.texts:,} texts"
    won = [attack for attack in attacks if attack.outcome == "successful"][:SHOWN]
    notes = [f"{item.label}: {item.text} → {item.predicted}: {item.perturbed}" for item in won]
    notes.append("In brackets: 95% intervals of Clopper and Pearson, over texts.")
    return Sheet(("measure", "value"), (Group(title, figures),), words=2, notes=tuple(notes))


def compared_attacks(runs: Iterable[Path]) -> Sheet:
    """The finished attacks on several runs: means over the runs of a method, with their 95% interval by Student's t.

    Runs are of one method where the words for it and the training data are the same; attacks are compared where their
    texts and all their settings but seeds are the same. Several attacks on one network count as one, by their mean.

    Args:
        runs: folders of runs, with attacks in their folder "attacks" or in that of their baseline.

    Returns:
        A table of failed attacks and of accuracy before and after, in percent.

    Raises:
        RunError: no finished attack, or a file that holds none.
    """
    tables: dict[tuple[str, str], dict[tuple[str, str], dict[str, list[AttackResult]]]] = {}
    for file in _files(runs):
        try:
            result = read_json(file, TypeAdapter(AttackResult))
        except JSONError as error:
            raise RunError(f"{error}; expected the result of an attack: remove the file") from error
        settings = result.settings
        number = f", {settings['num_samples']}" if "num_samples" in settings else ""
        noise = " (fresh)" if settings.get("noise") == "fresh" else ""
        row = (result.method, f"{settings['prediction']}{number}{noise}")
        rows = tables.setdefault((_title(result), str(settings["texts"])), {})
        rows.setdefault(row, {}).setdefault(str(settings["network"]), []).append(result)
    if not tables:
        raise RunError("attack-table: expected runs with attacks, found none; make them: probattn attack RUN")
    titles = Counter(title for title, _ in tables)
    groups = tuple(
        Group(
            title if titles[title] == 1 else f"{title}, texts {texts[:6]}",
            tuple(
                (*row, str(len(networks)), *(_over_networks(networks.values(), item) for item in MEASURES))
                for row, networks in sorted(rows.items())
            ),
        )
        for (title, texts), rows in sorted(tables.items())
    )
    note = (
        "In percent, with half the width of the 95% interval by Student's t over runs (none of one run); several "
        "attacks on one network are one run, by their mean. failed: attacks that failed, of those on texts whose "
        "class was right; attacked: accuracy after the attack."
    )
    return Sheet(
        ("method", "prediction", "runs", "failed", "accuracy", "attacked"), groups, words=2, notes=(note,)
    )


def _title(result: AttackResult) -> str:
    """What attacks must have in common to be compared."""
    settings = result.settings
    others = {"attack", "prediction", "noise", "seed", "network", "data", "texts", "num_samples"}
    words = [
        f"{name} {value}"
        for name, value in sorted(settings.items())
        if name not in others and value is not None
    ]
    data = (
        f"{settings['data']}, trained on {result.trained_on}" if settings.get("data") else result.trained_on
    )
    return f"{settings['attack']} on {data} ({', '.join(words)})"


def _files(runs: Iterable[Path]) -> Iterator[Path]:
    seen: set[Path] = set()
    for run in runs:
        if not run.is_dir():
            raise RunError(f"{run}: expected a folder of a run, found none")
        for folder in (run, run / BASELINE):
            files = [item.resolve() for item in sorted((folder / ATTACKS).glob("*.json"))]
            yield from (file for file in files if file not in seen)
            seen.update(files)


def _over_networks(networks: Iterable[Sequence[AttackResult]], measure: str) -> str:
    by_network = ([getattr(item.summary, measure).value for item in several] for several in networks)
    shares = [[share for share in item if share is not None] for item in by_network]
    values = [100 * statistics.fmean(share) for share in shares if share]
    if not values:
        return "-"
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.1f}"
    half = float(scipy.stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.1f} ± {half:.1f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
