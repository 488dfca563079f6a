"""The words whose attention makes a prediction unsure: records, and the section of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, Any, Literal

from markupsafe import Markup
from pydantic import Field, model_validator

from probattn.report.attention import (
    REASONS,
    Example,
    Reason,
    answer_words,
    head_words,
    packed,
    quoted,
    strip,
    title_of,
)
from probattn.report.markup import Section, exact, heatmap, site_labels
from probattn.report.record import Count, Probability, Record
from probattn.report.svg import isolated, printable

SCALE = 60_000
"""Steps of a share in the page's data."""
ALL = "all"

Share = Annotated[float, Field(ge=0)]
Maps = tuple[tuple[tuple[Share, ...], ...], ...]


class Answer(Record):
    """The likeliest class and its probability."""

    label: str
    probability: Probability


class Change(Record):
    """Attention to a word, or of one pair of tokens, and what the answer would be with half and with twice of it.

    Attributes:
        key: the word or token that is attended to.
        query: of a pair, the token that attends; None for attention from everywhere.
        site: of a pair, the attention call.
        head: of a pair, the index of the head.
        share: its part of the variance.
        half: the answer at the posterior expectation with half of the unnormalised weight.
        twice: with twice of it.
    """

    key: str
    query: str | None = None
    site: str | None = None
    head: Count | None = None
    share: Share
    half: Answer
    twice: Answer


class AttributionExample(Record):
    """An input and where the variance of its prediction comes from.

    Attributes:
        example: the input and its prediction.
        reason: why it is shown.
        classes: the two leading classes, the variance of the difference of whose logits is attributed.
        spread: standard deviation of the predicted class's probability in closed form.
        expected: the answer at the posterior expectation of attention.
        words: the words of the input, special tokens among them.
        second: where the second text begins among the words; None for a single text.
        sites: attention calls.
        share: parts of the variance by call, head and word that is attended to, rounded to 5 decimals; together 1, or
            less where calls attend to something else than the words.
        changes: what leads: words, then pairs.
        removed: part of the variance that goes when 1% of the weights are held at their means, by what they are chosen
            by; empty where it was not measured.
        draws: of that test.
    """

    example: Example
    reason: Reason
    classes: tuple[str, str]
    spread: Annotated[float, Field(ge=0)]
    expected: Answer
    words: Annotated[tuple[str, ...], Field(min_length=1)]
    second: Count | None = None
    sites: Annotated[tuple[str, ...], Field(min_length=1)]
    share: Maps
    changes: tuple[Change, ...] = ()
    removed: dict[Literal["share", "spread"], float] = Field(default_factory=dict)
    draws: Count = 0

    @model_validator(mode="after")
    def _shapes(self) -> AttributionExample:
        lengths = {len(row) for heads in self.share for row in heads}
        if len(self.share) != len(self.sites) or lengths != {len(self.words)}:
            raise ValueError(
                f"expected shares of {len(self.sites)} sites and {len(self.words)} words, got {len(self.share)} sites "
                f"and words {sorted(lengths)}"
            )
        return self

    def by_word(self) -> list[float]:
        """Shares of the words, over all calls and heads."""
        return [sum(column) for column in zip(*(row for heads in self.share for row in heads), strict=True)]


def attribution_section(examples: Sequence[AttributionExample], site_names: Sequence[str]) -> Section | None:
    """The section on attributed uncertainty; None without examples."""
    if not examples:
        return None
    labels = site_labels([*site_names, *(site for example in examples for site in example.sites)])
    context = {
        "examples": [_shown(example, labels) for example in examples],
        "removed": _removed(examples),
        "draws": max(example.draws for example in examples),
    }
    heading = "Which words make it unsure?"
    return Section("attribution", "Attribution", heading, "attribution.html", context)


def _removed(examples: Sequence[AttributionExample]) -> list[tuple[str, Markup, str, str]]:
    """Rows of the deletion test: what weights are chosen by, median, range, and the length of a bar."""
    names: dict[Literal["share", "spread"], str] = {
        "share": "their share of the variance",
        "spread": "their own spread, std over mean",
    }
    rows = []
    for by, words in names.items():
        values = [example.removed[by] for example in examples if by in example.removed]
        if values:
            middle = median(values)
            ends = f"{_percent(min(values))} to {_percent(max(values))}" if len(values) > 1 else ""
            rows.append((words, exact(middle, _percent(middle)), ends, f"{min(max(middle, 0), 1):.3f}"))
    return rows


def _percent(share: float) -> str:
    """A part that may be below zero, by chance."""
    return f"{share:z.0%}".replace("-", "\N{MINUS SIGN}")


def _shown(item: AttributionExample, labels: Mapping[str, str]) -> dict[str, Any]:
    """One example for the template, with the numbers of all calls and heads for the script."""
    by_word = item.by_word()
    heads = max(map(len, item.share))
    padded = [[*rows, *[(0.0,) * len(item.words)] * (heads - len(rows))] for rows in item.share]
    sums = [[sum(row) for row in rows] for rows in padded]
    total = sum(by_word)
    hints = [f"{printable(word)}: {share:.1%}" for word, share in zip(item.words, by_word, strict=True)]
    names = [labels[site] for site in item.sites]
    return {
        "reason": REASONS[item.reason],
        "title": title_of(item.example),
        "answer": answer_words(item.example),
        "closed": f"{100 * item.spread:.0f}",
        "drawn": f"{100 * item.example.spread:.0f}",
        "classes": tuple(map(isolated, item.classes)),
        "strip": strip(item.words, by_word, hints, item.second),
        "choices": _choices(item.sites, names, heads),
        "showing": _leading(item.words, by_word),
        "rest": f"{1 - total:.0%}" if total < 0.995 else "",
        "expected": _said(item.expected),
        "changes": [_change(change, labels) for change in item.changes],
        "heads": heatmap(
            names,
            [str(head) for head in range(heads)],
            sums,
            max(map(max, sums)) or 1.0,
            "ratio",
            "Share of the variance by attention call (rows) and head (columns)",
        ),
        "top": f"{max(map(max, sums)):.0%}",
        "payload": {
            "words": list(map(printable, item.words)),
            "sites": names,
            "heads": heads,
            "scale": SCALE,
            "share16": packed([row for rows in padded for row in rows], SCALE),
        },
    }


def _leading(words: Sequence[str], shares: Sequence[float]) -> str:
    """The words with the largest shares, in words."""
    order = sorted(range(len(words)), key=lambda index: (-shares[index], index))[:3]
    return "Largest shares: " + ", ".join(f"{quoted(words[item])} {shares[item]:.0%}" for item in order) + "."


def _choices(
    sites: Sequence[str], names: Sequence[str], heads: int
) -> list[tuple[str, str, list[tuple[str, str, str]]]]:
    """Choices of the page: field, legend, and a value, label and title for each option."""
    calls = [(ALL, ALL, "all attention calls")]
    calls += [(str(index), name, site) for index, (site, name) in enumerate(zip(sites, names, strict=True))]
    options = [(ALL, ALL, "all heads")] + [(str(head), str(head), head_words(head)) for head in range(heads)]
    return [("site", "Attention call", calls), ("head", "Head", options)]


def _change(change: Change, labels: Mapping[str, str]) -> dict[str, Any]:
    name, where = quoted(change.key), ""
    share = f"{change.share:.0%}" if change.share >= 0.095 else f"{change.share:.1%}"
    if change.site is not None and change.query is not None:
        name = f"{name} from {quoted(change.query)}"
        where = f"{labels[change.site]}, {head_words(change.head)}"
    return {
        "name": name,
        "where": where,
        "share": exact(change.share, share),
        "half": _said(change.half),
        "twice": _said(change.twice),
    }


def _said(answer: Answer) -> Markup:
    return Markup("{} {}").format(
        isolated(answer.label), exact(answer.probability, f"{answer.probability:.0%}")
    )
