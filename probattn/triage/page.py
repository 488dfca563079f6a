"""A policy and its decisions on a page and for a terminal, and their words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup
from scipy.stats import binom

from probattn.inference import Explanation
from probattn.report import Group, Sheet
from probattn.report.lines import Line, line_chart, nice_top, ticks
from probattn.report.markup import Section, plain
from probattn.report.page import render_page, run_section
from probattn.report.svg import Axis
from probattn.report.words import words_section
from probattn.triage.policy import Decision, Limit, Policy, Promised, TriageResults
from probattn.triage.shift import Shift

CLASSES = 12
"""Classes that a table for a terminal shows, those with the most inputs."""


def share(count: int, size: int) -> str:
    """A share in percent.

    Example:
        >>> share(1, 8), share(0, 0)
        ('12.5%', '-')
    """
    return f"{100 * count / size:.1f}%" if size else "-"


def percent(value: float) -> str:
    """A probability in percent, as short as it is.

    Example:
        >>> percent(0.05), percent(0.005)
        ('5%', '0.5%')
    """
    return f"{100 * value:g}%"


def promise_words(policy: Policy) -> str:
    """What the policy guarantees."""
    if policy.error is None:
        among = "" if policy.novelty is None else " among inputs near the training data"
        return f"none; the least cost{among} where a wrong answer costs {policy.cost:g} times a person's decision"
    if policy.by_class:
        return (
            f"error of at most {percent(policy.error)} among the answers of each class, {percent(policy.confidence)} "
            "confidence for each class; none for all classes jointly"
        )
    return f"error of at most {percent(policy.error)} among answered inputs, {percent(policy.confidence)} confidence"


def novelty_words(policy: Policy) -> str | None:
    """What the policy abstains from because it is far from the training data; None without a rule for it."""
    if policy.novelty is None:
        return None
    return (
        f"out-of-distribution inputs, by the features of the last layer: {percent(policy.novelty.share)} of in-domain "
        "inputs or fewer, on average over held-out data"
    )


def wrong_words(policy: Policy) -> list[str]:
    """When an answer is wrong, of a policy without classes."""
    return [] if policy.wrong_when is None else [f"An answer is wrong where {policy.wrong_when}."]


def headline(results: TriageResults) -> str:
    """The share of the inputs that is answered."""
    policy, first = results.policy, results.outcomes[0]
    if not first.answered:
        return f"No input can be answered: {promise_words(policy)} cannot be guaranteed here"
    answered = share(first.answered, first.size)
    if policy.error is None:
        among = "" if policy.novelty is None else " among those near the training data"
        return f"{answered} of the inputs are answered, at the least cost{among}"
    if policy.by_class:
        return f"{answered} of the inputs are answered, each class at an error of at most {percent(policy.error)}"
    return f"{answered} of the inputs are answered at an error of at most {percent(policy.error)}"


def attainable(results: TriageResults) -> Promised | None:
    """The smallest larger target error rate at which inputs can be answered, of a policy that answers none."""
    target = results.policy.error
    if target is None or results.outcomes[0].answered:
        return None
    larger = (item for item in results.promises if item.error > target and item.limit.answered)
    return next(larger, None)


def opening(results: TriageResults) -> str:
    """What is known of the answered inputs."""
    policy, first = results.policy, results.outcomes[0]
    if not first.answered:
        wrong = f"{share(first.wrong or 0, first.size)} of all {first.size:,} held-out predictions are wrong"
        if policy.error is None:
            return f"{wrong}."
        if binom.cdf(first.wrong or 0, first.size, policy.error) <= 1 - policy.confidence:
            return (
                f"{wrong}: all of them together would pass. But the tests start at a threshold from the validation "
                "data, and the first one fails. Give more validation data (data.validation_fraction, data.validation)."
            )
        fewest = math.ceil(math.log(1 - policy.confidence) / math.log1p(-policy.error))
        larger, answers = attainable(results), ""
        if larger is not None:
            covered = share(larger.limit.answered, larger.limit.size)
            answers = f" {larger.error:g} answers {covered}"
        return (
            f"{wrong}; the guarantee needs {fewest:,} answered ones without an error, or more with some. Allow more "
            f"errors (--error{answers}), lower --confidence, or give more held-out inputs (--data)."
        )
    bound = ""
    if len(policy.limits) == 1 and policy.limits[0].bound is not None:
        bound = f", at most {100 * policy.limits[0].bound:.1f}% with {percent(policy.confidence)} confidence"
    return (
        f"Of {first.size:,} held-out inputs {first.answered:,} are answered, "
        f"{share(first.errors or 0, first.answered)} of them wrongly{bound}; without selection "
        f"{share(first.wrong or 0, first.size)} would be wrong."
    )


def triage_table(results: TriageResults) -> Sheet:
    """Table for a terminal: coverage at each target error rate, and results of the policy on each data set."""
    policy, first = results.policy, results.outcomes[0]
    last = () if policy.novelty is None else ("",)
    groups = [
        Group(
            f"{first.title} ({first.size:,} held-out inputs), by target error rate",
            tuple((percent(promise.error), *_cells(promise.limit), *last) for promise in results.promises),
        )
    ]
    if len(policy.limits) > 1:
        largest = sorted(policy.limits, key=lambda limit: -limit.size)[:CLASSES]
        groups.append(
            Group(
                f"The policy by predicted class ({len(largest)} of {len(policy.limits)})",
                tuple((str(item.label), *_cells(item), *last) for item in largest),
            )
        )
    groups.append(Group("What the policy does", tuple(_outcome_rows(results))))
    words = [f"{headline(results)}. {opening(results)}", *_unfiltered(results)]
    words.append(f"Guarantee: {promise_words(policy)}.")
    if novelty := novelty_words(policy):
        words.append(f"For human review also: {novelty}.")
    words += [*wrong_words(policy), *results.doubts]
    if any(outcome.role != "in_domain" for outcome in results.outcomes):
        words.append("No guarantee holds on shifted and out-of-domain data.")
    words += [
        f"{outcome.title}: distribution shift against the held-out inputs, {listed}."
        for outcome in results.outcomes
        if (listed := differ(outcome.shift))
    ]
    if listed := differ(results.pilot):
        words.append(
            f"Distribution shift between validation data and held-out inputs, {listed}: the tests begin at the "
            "threshold of the validation data, so coverage may be lower than it could be."
        )
    if policy.sets is not None and results.set_sizes:
        mean = sum(size * count for size, count in results.set_sizes.items()) / policy.size
        words.append(
            f"Conformal sets contain the true class with a probability of at least {percent(1 - policy.sets.error)}; "
            f"{mean:.2f} classes on average."
        )
    if policy.sets is not None and policy.sets.score == "interval":
        words.append(
            "Intervals, low to high, hold the true number with a probability of at least "
            f"{percent(1 - policy.sets.error)}."
        )
    words += [
        f"Cost of a decision, if a wrong answer costs {cost.cost:g} times a human review: {cost.answer_all:.3f} where "
        f"all are answered, {cost.policy:.3f} by the policy, {cost.cheapest:.3f} at best (coverage "
        f"{100 * cost.cheapest_answered:.1f}%)."
        for cost in results.costs
        if policy.cost is not None
    ]
    return Sheet(
        ("", "coverage", "error", f"at most ({percent(policy.confidence)})", *(last and ("far",))),
        tuple(groups),
        notes=tuple(words),
    )


TOLERATED = 0.02
"""Share of out-of-domain inputs that may be answered without a remark."""


def _unfiltered(results: TriageResults) -> Iterable[str]:
    """Out-of-domain data that a policy without a rule for them answers."""
    for outcome in () if results.policy.novelty is not None else results.outcomes:
        if outcome.role == "out_of_domain" and outcome.answered > TOLERATED * outcome.size:
            yield (
                f"{share(outcome.answered, outcome.size)} of {outcome.title} are answered too; with --novelty 0.05 the "
                "policy abstains from inputs far from the training data."
            )


def differ(shift: Shift | None) -> str:
    """What differs, where anything does."""
    return "" if shift is None else ", ".join(shift.differences)


def decision_words(answered: int, size: int, policy: Policy, distances: Iterable[float] = ()) -> str:
    """How many inputs were answered, beside the share of the held-out ones, and how many are far."""
    limit = policy.novelty
    far = sum(distance >= limit.threshold for distance in distances) if limit else 0
    told = f", {far:,} of them far from the training data" if limit else ""
    expected = share(sum(limit.answered for limit in policy.limits), policy.size)
    return (
        f"{answered:,} of {size:,} answered ({share(answered, size)}; of the held-out inputs {expected}), "
        f"{size - answered:,} for human review{told}"
    )


def shift_words(shift: Shift | None, policy: Policy) -> str | None:
    """A warning of a distribution shift against the held-out inputs; None where none is detected."""
    if not (listed := differ(shift)):
        return None
    return (
        f"distribution shift: these inputs differ from the {policy.size:,} that the policy was calibrated on "
        f"({policy.data}): {listed}. Its guarantee holds only for in-domain inputs. Label some of these, and calibrate "
        "a policy on them: probattn triage RUN --data FILE"
    )


def _cells(limit: Limit) -> tuple[str, str, str]:
    if limit.threshold is None:
        return "not guaranteed", "", ""
    bound = "" if limit.bound is None else f"{100 * limit.bound:.1f}%"
    return share(limit.answered, limit.size), share(limit.errors, limit.answered), bound


def _outcome_rows(results: TriageResults) -> Iterable[tuple[str, ...]]:
    for outcome in results.outcomes:
        role = "" if outcome.role == "in_domain" else f", {outcome.role.replace('_', ' ')}"
        wrong = "" if outcome.errors is None else share(outcome.errors, outcome.answered)
        far = () if outcome.far is None else (share(outcome.far, outcome.size),)
        yield f"{outcome.title}{role}", share(outcome.answered, outcome.size), wrong, "", *far


WORDS = ("words_for", "words_against", "unsure_about")
"""Columns of words with what they change, of an input for human review."""


LIKELIEST = 3
"""Classes that a person is shown."""


def likeliest(probabilities: Mapping[str, float]) -> list[str]:
    """The likeliest classes with their probabilities.

    Example:
        >>> likeliest({"refund": 0.25, "charge": 0.625, "fee": 0.125, "card": 0.0})
        ['charge 62%', 'refund 25%', 'fee 12%']
    """
    first = sorted(probabilities, key=lambda name: -probabilities[name])[:LIKELIEST]
    return [f"{name} {probabilities[name]:.0%}" for name in first]


def decision_columns(
    decision: Decision, explanation: Explanation | None, *, explained: bool = True
) -> dict[str, Any]:
    """What a policy adds to an answer for programs; without columns of words where nothing names them."""
    columns: dict[str, Any] = {"decision": decision.words, "why": list(decision.reasons)}
    if explained:
        words = {} if explanation is None else explanation.columns()
        columns |= {name: list(words.get(name, ())) for name in WORDS}
    if decision.interval is not None:
        columns |= dict(zip(("low", "high"), decision.interval, strict=True))
    if decision.novelty is not None:
        columns["novelty"] = shown_novelty(decision.novelty, 6)
    return columns if decision.classes is None else {**columns, "set": list(decision.classes)}


def shown_novelty(value: float, digits: int) -> float | None:
    """Rounded, but not up to 1, from which on a person decides; None where it is no number.

    Example:
        >>> shown_novelty(0.9999, 3), shown_novelty(1.2345, 3), shown_novelty(math.inf, 3)
        (0.999, 1.234, None)
    """
    if math.isinf(value):
        return None
    return round(value, digits) if value >= 1 else math.floor(value * 10**digits) / 10**digits


INPUTS = ("text", "pair", "image")
"""Keys of an answer that say what was asked."""


def decisions_table(
    answers: Sequence[Mapping[str, Any]],
    decisions: Sequence[tuple[Decision, Explanation | None]],
    policy: Policy,
) -> Sheet:
    """Table for a terminal: answers with their decisions."""
    rows = []
    for answer, (decision, explanation) in zip(answers, decisions, strict=True):
        words = {} if explanation is None else explanation.columns()
        text = " / ".join(str(answer[name]) for name in INPUTS if answer.get(name) is not None)
        label = str(answer.get("choice", answer["label"]))
        label = label if decision.answered else f"({label})"
        cells = [text, decision.words, label, "; ".join((words or {}).get("unsure_about", ()))]
        if policy.sets is not None:
            cells.append(", ".join(decision.classes or ()))
        cells.append(f"{answer['probability']:.3f}")
        if decision.novelty is not None:
            far = shown_novelty(decision.novelty, 3)
            cells.append("not a number" if far is None else f"{far:.3f}")
        rows.append(tuple(cells))
    heading = "image" if answers and "image" in answers[0] else "text"
    headings = [heading, "decision", "class", "unsure about", *(["set"] if policy.sets is not None else [])]
    notes = _decided_by(policy)
    if novelty := novelty_words(policy):
        notes.append(f"For human review also: {novelty}; their novelty is 1 or more.")
    return Sheet(
        (*headings, "probability", *(["novelty"] if policy.novelty else [])),
        (Group("", tuple(rows)),),
        words=len(headings),
        notes=tuple(notes),
    )


def with_decisions(table: Any, decisions: Sequence[tuple[Decision, Any]], policy: Policy) -> Sheet:
    """A head's table of answers without classes, with what becomes of them and their intervals."""
    ends = ("low", "high") if decisions and decisions[0][0].interval else ()
    rows = [
        (decision.words, *row, *(f"{end:.3f}" for end in decision.interval or ()))
        for (decision, _), row in zip(decisions, table.groups[0].rows, strict=True)
    ]
    return Sheet(
        ("decision", *table.headings, *ends),
        (Group("", tuple(rows)),),
        words=table.words + 1,
        notes=(*table.notes, *_decided_by(policy)),
    )


def _decided_by(policy: Policy) -> list[str]:
    guarantee = f"Guarantee: {promise_words(policy)}; calibrated on {policy.size:,} inputs of {policy.data}."
    return [guarantee, *wrong_words(policy)]


SHOWN_CLASSES = 40
"""Classes that the page shows, those that are predicted most."""
MATRIX = 12
"""Most classes of a matrix of confusions."""
SMALLEST_SHARE = 0.02


def page(results: TriageResults) -> str:
    """The page as text; equal records give an equal page."""
    policy = results.policy
    return render_page(
        _sections(results),
        kind="triage",
        name=results.run.name,
        headline=headline(results),
        opening=opening(results),
        facts=(
            ("Network", plain(results.run.network)),
            ("Method", plain(results.run.method)),
            ("Guarantee", promise_words(policy)),
            *([] if policy.wrong_when is None else [("Wrong where", policy.wrong_when)]),
            ("Uncertainty", policy.score.replace("_", " ")),
        ),
        package="probattn.triage",
    )


def _sections(results: TriageResults) -> Iterator[Section]:
    shared = {
        "results": results,
        "policy": results.policy,
        "share": share,
        "percent": percent,
        "differ": differ,
        "novelty": novelty_words(results.policy),
    }

    def section(anchor: str, title: str, heading: str, **context: Any) -> Section:
        return Section(anchor, title, heading, "triage.html", {**shared, "anchor": anchor, **context})

    yield section("promises", "Guarantees", "What can be answered", chart=_chart(results))
    people = words_section(results.examples)
    if people is not None:
        yield replace(people, heading="For human review: the most uncertain inputs, and their words")
    yield section("outcomes", "Data sets", "What the policy does")
    if results.policy.classes:
        yield section("classes", "Classes", "By class", **_classes(results))
    yield section("costs", "Costs", "What a decision costs")
    if results.set_sizes is not None:
        yield section("sets", "Sets", "Conformal sets of classes")
    note = Markup(
        "Every number of this page is in <code>triage.json</code>; <code>policy.json</code> is the policy."
    )
    yield run_section(results.run, (), note, (), results.policy.classes)


def _chart(results: TriageResults) -> Markup:
    curve, error = results.curve, results.policy.error
    points = tuple(p for p in zip(curve.coverage, curve.risk, strict=True) if p[0] >= SMALLEST_SHARE)
    lines = [Line("error", "bay", points)]
    if error is not None:
        lines.append(Line("target", "det", ((0.0, error), (1.0, error))))
    top = nice_top(max([error or 0.0, *(risk for _, risk in points)]))
    x = Axis(0, 1, "coverage (most confident first)", ticks(0, 1, 4, percent=True))
    y = Axis(0, top, "error rate among answered", ticks(0, top, 4, percent=True))
    return line_chart(lines, x, y, "Error among answered inputs")


def _classes(results: TriageResults) -> dict[str, Any]:
    """Rows of the table of classes, and the matrix of confusions where there are few."""
    rows = sorted(results.classes, key=lambda row: -row.predicted)[:SHOWN_CLASSES]
    names = [row.label for row in results.classes]
    if len(names) > MATRIX:
        return {"rows": rows, "names": names, "matrix": None}
    cells = {(item.label, item.predicted): (item.count, item.answered) for item in results.confused}
    for row in results.classes:
        wrong = sum(count for (_, predicted), (count, _) in cells.items() if predicted == row.label)
        cells[row.label, row.label] = (row.predicted - wrong, row.answered - row.errors)
    matrix = [(true, [cells.get((true, name), (0, 0)) for name in names]) for true in names]
    return {"rows": rows, "names": names, "matrix": matrix}
