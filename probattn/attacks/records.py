"""Records of attacks, one line per text, their summaries, and tables of these."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import scipy
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from probattn.files.json_files import JSONError, first_problem, read_json
from probattn.inference.records import Record, RecordWriter, read_records, truncate_records
from probattn.metrics.functional import mean_interval
from probattn.report import Group, Sheet
from probattn.report.record import Count, mean_of
from probattn.tasks.errors import RunError
from probattn.tasks.task import BASELINE

Outcome = Literal["failed", "exhausted", "successful", "skipped"]
"""The attack failed, ran out of queries, was successful, or was skipped because the network was wrong before it."""
LEVEL = 0.95
ATTACKS = "attacks"
"""Folder of the records in that of the run."""
SHOWN = 2
"""Texts that :func:`attack_table` shows."""
MEASURES = ("failed", "accuracy", "accuracy_attacked")


Text = str | tuple[str, str]
"""A text, or a pair of texts."""


class Victim(Protocol):
    """A classifier that is attacked: a function of texts that returns class probabilities."""

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes."""

    def begin(self, number: int) -> None:
        """Notifies the classifier that the attack on text ``number`` begins."""

    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Probabilities of the classes, float64 ``[N, C]``."""


class AttackedText(BaseModel):
    """Result of the attack on one text.

    Attributes:
        text: the attacked text; of a pair the second text.
        first: the first text of a pair.
        label: true class.
        outcome: outcome of the attack.
        probability: probability of the true class before the attack.
        attacked: probability of the true class for ``perturbed``.
        predicted: predicted class for ``perturbed``.
        perturbed: text at the end of the attack.
        words: number of words of the text.
        changed: number of changed words.
        queries: number of queries of the network.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    text: str
    first: str | None = None
    label: str
    outcome: Outcome
    probability: float
    attacked: float
    predicted: str
    perturbed: str
    words: Count
    changed: Count
    queries: Count


class Share(BaseModel):
    """A share, ``count`` of ``of`` examples, and its 95% interval (Clopper and Pearson 1934); None if ``of`` is 0."""

    model_config = ConfigDict(frozen=True, strict=True)

    count: Count
    of: Count
    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def counted(cls, count: int, of: int) -> Self:
        """The share of ``count`` among ``of`` examples, with its interval.

        Example:
            >>> share = Share.counted(9, 10)
            >>> share.value, round(share.low, 3), round(share.high, 3)
            (0.9, 0.555, 0.997)
        """
        if not of:
            return cls(count=0, of=0, value=None, low=None, high=None)
        interval = scipy.stats.binomtest(count, of).proportion_ci(LEVEL, method="exact")
        return cls(count=count, of=of, value=count / of, low=float(interval.low), high=float(interval.high))

    def __str__(self) -> str:
        """In percent, with the interval."""
        if self.value is None or self.low is None or self.high is None:
            return "-"
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


class AttackSummary(BaseModel):
    """Summary of an attack on a number of texts.

    Attributes:
        texts: number of texts.
        failed: share of failed attacks among the texts that were predicted correctly: the papers' "failed attack rate".
        exhausted: number of attacks that failed because they ran out of queries.
        accuracy: share of texts predicted correctly before the attack.
        accuracy_attacked: share of texts predicted correctly after the attack.
        queries: mean number of queries of an attack, without skipped texts.
        changed: mean share of changed words in successful attacks.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    texts: Count
    failed: Share
    exhausted: Count
    accuracy: Share
    accuracy_attacked: Share
    queries: float | None
    changed: float | None


class AttackResult(BaseModel):
    """Result of an attack on a run.

    Attributes:
        run: folder of the run.
        name: name of the run's recipe.
        method: description of the attention method, or "baseline".
        trained_on: source of the training data.
        training_seed: seed of the training.
        trained_by: fingerprint of the network's recipe but for the seed; empty in older files.
        settings: everything on which the records depend.
        versions: versions of Python and packages.
        summary: summary of the attack.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    run: str
    name: str
    method: str
    trained_on: str
    training_seed: int
    trained_by: str = ""
    settings: dict[str, str | int | float | bool | None]
    versions: dict[str, str]
    summary: AttackSummary


def summarise(attacks: Sequence[AttackedText]) -> AttackSummary:
    """Summary of attacked texts."""
    tried = [attack for attack in attacks if attack.outcome != "skipped"]
    won = [item for item in tried if item.outcome == "successful"]
    lost = len(tried) - len(won)
    return AttackSummary(
        texts=len(attacks),
        failed=Share.counted(lost, len(tried)),
        exhausted=sum(item.outcome == "exhausted" for item in tried),
        accuracy=Share.counted(len(tried), len(attacks)),
        accuracy_attacked=Share.counted(lost, len(attacks)),
        queries=mean_of(item.queries for item in tried),
        changed=mean_of(item.changed / item.words for item in won if item.words),
    )


class AttackFile:
    """File of the records of one attack: a line of settings, then a line per text.

    Each line is written at once, so an interruption loses only the text under attack. An existing file is continued if
    it has the same settings.

    Args:
        path: the file, ending in .jsonl.
        settings: everything on which the records depend, by name: texts, numbers and truth values.
        again: whether to overwrite an existing file.

    Attributes:
        done: texts that were attacked already, in order.

    Raises:
        RunError: the file has other settings, or another program is writing to it.
        RecordsError: the file is damaged.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, again: bool = False) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path.with_suffix(".lock"), timeout=0)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise RunError(f"{path}: another program is writing this attack; wait for it") from error
        try:
            self.done = self._begin(dict(settings), again)
            self._writer = RecordWriter(path)
            if not path.stat().st_size:
                self._writer.append({"kind": "attack", "step": 0, "settings": dict(settings)})
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, settings: dict[str, Any], again: bool) -> list[AttackedText]:
        if again:
            self.path.unlink(missing_ok=True)
        records = read_records(self.path)
        if not records:
            self.path.unlink(missing_ok=True)  # at most an unfinished first line
            return []
        recorded = settings_of(self.path, records)
        for name in sorted(recorded.keys() | settings.keys()):
            if recorded.get(name) != settings.get(name):
                raise RunError(
                    f"{self.path}: expected an attack with {name} {settings.get(name)!r} to continue, its {name} is "
                    f"{recorded.get(name)!r}; begin anew with --again, or name another --output"
                )
        truncate_records(self.path, len(records))
        return attacked_texts(self.path, records)

    def append(self, attacked: AttackedText) -> None:
        """Adds the record of a text."""
        self.done.append(attacked)
        self._writer.append({"kind": "text", "step": len(self.done), **attacked.model_dump()})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._lock.release()


def settings_of(path: Path, records: Sequence[Record]) -> dict[str, Any]:
    """The settings of an attack's records; ``RunError`` where they are none."""
    settings = records[0].get("settings") if records else None
    if not isinstance(settings, dict):
        raise RunError(f"{path}: expected the records of an attack, got others; remove the file")
    return settings


def attacked_texts(path: Path, records: Sequence[Record]) -> list[AttackedText]:
    """The texts of an attack's records; ``RunError``, naming the line, where one is damaged."""
    texts = []
    for line, record in enumerate(records[1:], start=2):
        try:
            texts.append(AttackedText.model_validate(record))
        except ValidationError as error:
            raise RunError(
                f"{path}, line {line}: expected an attacked text ({first_problem(error)}); remove this line and those "
                "after it, or begin anew with --again"
            ) from error
    return texts


def read_attack(path: Path) -> tuple[dict[str, Any], list[AttackedText]]:
    """Reads settings and texts from the file of an attack.

    Raises:
        RunError: the file is not one of an attack.
        RecordsError: the file is damaged.
    """
    records = read_records(path)
    return settings_of(path, records), attacked_texts(path, records)


def attack_table(result: AttackResult, attacks: Sequence[AttackedText] = ()) -> Sheet:
    """Table of the summary of an attack, with the first texts that were changed successfully."""
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
    """Compares the finished attacks on several runs: means over the runs of a method, 95% intervals of Student's t.

    Runs have the same method if their recipes are the same but for seeds; attacks are compared if their texts and all
    settings but seeds are the same. Several attacks on one network are averaged first.

    Args:
        runs: folders of runs, with attacks in their subfolder "attacks" or in that of their baseline.

    Returns:
        Table of failed attacks and of accuracy before and after, in percent.

    Raises:
        RunError: there is no finished attack, or a file is not one of an attack.
    """
    tables: dict[tuple[str, str], dict[tuple[str, str, str], dict[str, list[AttackResult]]]] = {}
    for file in _files(runs):
        try:
            result = read_json(file, TypeAdapter(AttackResult))
        except JSONError as error:
            raise RunError(f"{error}; expected the result of an attack: remove the file") from error
        settings = result.settings
        number = f", {settings['num_samples']}" if "num_samples" in settings else ""
        noise = " (fresh)" if settings.get("noise") == "fresh" else ""
        row = (result.method, f"{settings['prediction']}{number}{noise}", result.trained_by)
        rows = tables.setdefault((_title(result), str(settings["texts"])), {})
        rows.setdefault(row, {}).setdefault(str(settings["network"]), []).append(result)
    if not tables:
        raise RunError("attack-table: expected runs with attacks, found none; make them: probattn attack RUN")
    titles = Counter(title for title, _ in tables)
    groups = tuple(
        Group(
            title if titles[title] == 1 else f"{title}, texts {texts[:6]}",
            tuple(
                (
                    method
                    if [row[:2] for row in rows].count((method, prediction)) == 1
                    else f"{method}, {recipe[:6]}",
                    prediction,
                    str(len(networks)),
                    *(_over_networks(networks.values(), item) for item in MEASURES),
                )
                for (method, prediction, recipe), networks in sorted(rows.items())
            ),
        )
        for (title, texts), rows in sorted(tables.items())
    )
    note = (
        "In percent, with half the width of the 95% interval by Student's t over runs (none of one run); several "
        "attacks on one network are one run, by their mean. failed: attacks that failed, of those on texts whose "
        "class was right; attacked: accuracy after the attack. Six digits behind a method tell recipes apart."
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
    mean, _, high, _ = mean_interval(values)
    return f"{mean:.1f}" if high is None else f"{mean:.1f} ± {high - mean:.1f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
