"""What people decided: labels for the next training, and the guarantee of a policy tested again."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from probattn.checks import shown
from probattn.data import DataError
from probattn.data.checking import spelling_key
from probattn.data.errors import nearest, suggestion
from probattn.data.rows import PREFIX, as_text
from probattn.metrics.functional import error_bound
from probattn.report.record import Count, Probability, Record
from probattn.tasks.errors import RunError
from probattn.triage.policy import ANSWER, CHECKED, PERSON, Policy
from probattn.triage.queue import REVIEWED

LISTED = re.compile(r"(.+?) \d+%(?:; ?|$)", re.DOTALL)
"""A class with its probability in a list of the likeliest; names may have semicolons too."""
LEVEL = 0.05
"""A p value below which the error rate is said to be above the target."""


class Checked(Record):
    """Answers that people checked.

    Attributes:
        size: number of them.
        wrong: of them.
        audited: answers that ``--audit`` chose; those that nobody checked count too.
        sampled: whether they are a random choice of the answers (``--audit``).
        bound: upper confidence bound of the error rate, at the policy's confidence.
        p_value: probability of as many wrong ones or more at the target error rate (binomial test); None without one.
    """

    size: Count
    wrong: Count
    audited: Count
    sampled: bool
    bound: Probability | None
    p_value: Probability | None


class Review(Record):
    """People's classes beside what a policy decided.

    Attributes:
        rows: of the file.
        reviewed: of them, with a class that a person decided.
        queue: reviewed inputs that the policy had left to people.
        agreed: of them, those whose suggested class was right.
        listed: of them, those whose class was among the likeliest that were shown.
        checked: the answers that people checked; None without any.
        copies: reviewed rows that are copies of earlier ones.
        new_classes: classes that the network does not have, with their numbers.
    """

    rows: Count
    reviewed: Count
    queue: Count
    agreed: Count
    listed: Count
    checked: Checked | None
    copies: Count
    new_classes: Mapping[str, Count]

    def lines(self, policy: Policy) -> Iterator[str]:
        """The review in sentences."""
        yield f"{self.reviewed:,} of {self.rows:,} rows are reviewed"
        if self.copies:
            yield f"{self.copies:,} of them are copies of earlier rows, but count as independent; remove the copies"
        if self.queue:
            yield (
                f"human review: the suggested class was right in {self.agreed:,} of {self.queue:,} "
                f"({self.agreed / self.queue:.1%}), the class was among the likeliest in {self.listed:,}"
            )
        if self.checked is None:
            yield "answers: none was checked; `probattn predict --audit 0.05` marks a random sample of them"
        else:
            yield f"answers: {self._checked_words(self.checked, policy)}"
        if self.new_classes:
            near = {name: nearest(name, policy.classes) for name in self.new_classes}
            listed = ", ".join(
                f"{name} ({count:,}{'' if near[name] is None else f'; {near[name]}?'})"
                for name, count in list(self.new_classes.items())[:12]
            )
            yield f"classes that the network does not have: {listed}; correct them, or add --new-classes"

    @staticmethod
    def _checked_words(checked: Checked, policy: Policy) -> str:
        sample = "" if checked.sampled else " (a sample that no `--audit` chose: was it a random one?)"
        if checked.audited > checked.size:
            sample = f" (of {checked.audited:,} that `--audit` chose: review the others too)"
        words = (
            f"{checked.wrong:,} of {checked.size:,} checked ones are wrong ({checked.wrong / checked.size:.1%}, at "
            f"most {checked.bound or 1:.1%} with {policy.confidence:.0%} confidence){sample}"
        )
        if checked.p_value is None or policy.error is None:
            return words
        if checked.p_value < LEVEL:
            return (
                f"{words}; the error rate is above the target of {policy.error:.1%} (p = {checked.p_value:.2g}): label "
                "a random sample of new inputs, and calibrate with `probattn triage RUN --data FILE`"
            )
        return f"{words}; this agrees with the target of {policy.error:.1%} (p = {checked.p_value:.2g})"


def review(
    rows: Sequence[Mapping[str, Any]], policy: Policy, column: str | None = None, source: str = "the rows"
) -> Review:
    """Compares people's classes with a policy's decisions, and tests its guarantee; ``RunError`` without any."""
    if not policy.classes:
        raise RunError(f"{source}: expected a policy of classes, got one of other answers")
    columns = list(rows[0]) if rows else []
    column = column or column_of(rows[0] if rows else {}, REVIEWED)
    if columns and column not in columns:
        advice = suggestion(column, columns)
        raise RunError(
            f"{source}: expected a column {column!r}, got {', '.join(map(shown, columns[:12]))}{advice}; name the "
            "column of people's classes with --reviewed-column"
        )
    done = [row for row in rows if person_of(row, column, policy.classes)]
    if not done:
        raise RunError(
            f"{source}: expected rows with a class in column {column!r}, got none in {len(rows):,} rows"
        )
    needed = ("decision", "why", "label")
    lacking = next((name for row in done for name in needed if column_of(row, name) not in row), None)
    if lacking is not None:
        raise RunError(
            f"{source}: expected a file of `probattn predict --policy`, or its tasks, got no column {lacking!r}"
        )
    _require_decisions(done, policy, source)
    answered = [row for row in done if _word(cell_of(row, "decision")) == ANSWER]
    sample = [row for row in answered if CHECKED in _entries(cell_of(row, "why"))]
    queue = [row for row in done if _word(cell_of(row, "decision")) != ANSWER]
    people = [person_of(row, column, policy.classes) for row in queue]
    agreed = sum(name == _label(row, policy) for name, row in zip(people, queue, strict=True))
    listed = sum(name in _likeliest(row) for name, row in zip(people, queue, strict=True))
    counts = Counter(person_of(row, column, policy.classes) for row in done)
    new = {name: count for name, count in counts.items() if name not in policy.classes}
    audited = sum(CHECKED in _entries(cell_of(row, "why")) for row in rows)
    return Review(
        rows=len(rows),
        reviewed=len(done),
        queue=len(queue),
        agreed=agreed,
        listed=listed,
        checked=_checked(sample or answered, policy, column, audited if sample else 0),
        copies=len(done) - len({json.dumps(row, sort_keys=True, default=str) for row in done}),
        new_classes=new,
    )


def _require_decisions(rows: Sequence[Mapping[str, Any]], policy: Policy, source: str) -> None:
    """Refuses rows of another network's classes, or whose decision is neither an answer nor left to people."""
    labels = (label for row in rows if (label := _label(row, policy)))
    if (other := next((label for label in labels if label not in policy.classes), None)) is not None:
        raise RunError(
            f"{source}: expected decisions of this policy, whose classes are {', '.join(policy.classes[:12])}, got the "
            f"label {other!r}; name the run that decided them"
        )
    decisions = (_word(cell_of(row, "decision")) for row in rows)
    if (other := next((word for word in decisions if word not in (ANSWER, PERSON)), None)) is not None:
        raise RunError(f"{source}: expected decisions {ANSWER!r} and {PERSON!r}, got {other!r}")


def _label(row: Mapping[str, Any], policy: Policy) -> str:
    """The network's label in its own spelling, which a spreadsheet may have changed (TRUE for true)."""
    return person_of(row, column_of(row, "label"), policy.classes)


def _word(cell: Any) -> str:
    return str(cell or "").strip().lower()


def _checked(rows: Sequence[Mapping[str, Any]], policy: Policy, column: str, audited: int) -> Checked | None:
    if not rows:
        return None
    wrong = sum(person_of(row, column, policy.classes) != _label(row, policy) for row in rows)
    size = len(rows)
    p_value = None
    if policy.error is not None:
        p_value = float(binomtest(wrong, size, policy.error, alternative="greater").pvalue)
    return Checked(
        size=size,
        wrong=wrong,
        audited=audited,
        sampled=audited > 0,
        bound=error_bound(wrong, size, policy.confidence),
        p_value=p_value,
    )


def person_of(row: Mapping[str, Any], column: str, classes: Sequence[str] = ()) -> str:
    """The class that a person decided, in the network's spelling; empty for none and for signs alone; 1.0 is 1."""
    name = as_text(row.get(column)).strip()
    if name not in classes and not any(map(str.isalnum, name)):
        return ""
    forms = {spelling_key(name), spelling_key(name.removesuffix(".0"))}
    alike = [item for item in classes if spelling_key(item) in forms]
    return alike[0] if len(alike) == 1 and name not in classes else name


def column_of(row: Mapping[str, Any], name: str) -> str:
    """The column of a policy's answer: that with most prefixes, as it has one more than a column of the inputs."""
    named = [column for column in row if re.fullmatch(f"({PREFIX})*{name}", column)]
    return max(named, key=len, default=name)


def cell_of(row: Mapping[str, Any], name: str) -> Any:
    """What a policy's answer has in a column."""
    return row.get(column_of(row, name))


def _entries(cell: Any) -> list[str]:
    return [_word(item) for item in (cell if isinstance(cell, list) else str(cell or "").split(";"))]


def _likeliest(row: Mapping[str, Any]) -> list[str]:
    cell = cell_of(row, "likeliest")
    return LISTED.findall("; ".join(cell) if isinstance(cell, list) else str(cell or ""))


def exported_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an export of Label Studio (JSON or JSON-MIN), people's last class as ``reviewed``."""
    try:
        tasks = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected an export of Label Studio in JSON ({error})") from None
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise DataError(f"{path}: expected an export of Label Studio, a list of tasks, got {shown(tasks)}")
    rows: dict[str, dict[str, Any]] = {}
    for number, task in enumerate(tasks):  # JSON-MIN has a row for each annotation
        row = _row_of(task)
        key = str(task["id"]) if row.keys() == task.keys() and "id" in task else f"row {number}"
        if row.get(REVIEWED) or key not in rows:
            rows[key] = row
    return list(rows.values())


def _row_of(task: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(task.get("data"), dict):
        return dict(task)  # JSON-MIN
    names = [
        name
        for annotation in task.get("annotations") or ()
        if isinstance(annotation, dict) and not annotation.get("was_cancelled")
        for result in annotation.get("result") or ()
        if isinstance(result, dict) and result.get("from_name") == REVIEWED
        for name in (result.get("value") or {}).get("choices") or ()
    ]
    return {**task["data"], REVIEWED: names[-1] if names else None}
