"""Single inputs of the page, ready for the template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from probattn.inference.report.charts.glyphs import draws_glyph
from probattn.inference.report.charts.svg import isolated, printable
from probattn.inference.report.examples import Example
from probattn.inference.report.markup import exact
from probattn.inference.report.results import Results


@dataclass(frozen=True)
class Card:
    """One input with its prediction."""

    example: Example
    data: str
    text: str
    pair: str | None
    long: bool
    sure: Markup
    spread: Markup | None
    baseline: Markup | None
    draws: Markup | None


def cards(results: Results, examples: Sequence[Example]) -> list[Card]:
    """Inputs with their predictions."""
    titles = {data.key: data.title for data in results.data}
    return [_card(example, titles.get(example.data or "", "")) for example in examples]


def _card(example: Example, data: str) -> Card:
    text = printable(example.text)
    baseline = draws = None
    if example.baseline_probability is not None:
        baseline = exact(example.baseline_probability, f"{example.baseline_probability:.0%}")
    if example.draws:
        title = f"Probability of {isolated(example.predicted)} in {len(example.draws)} draws"
        draws = Markup(draws_glyph(example.draws, example.probability, example.baseline_same, title))
    return Card(
        example,
        data,
        text,
        None if example.pair is None else printable(example.pair),
        len(text) + len(example.pair or "") > 420,
        exact(example.probability, f"{example.probability:.0%}"),
        exact(example.spread, f"{100 * example.spread:.0f}") if example.draws else None,
        baseline,
        draws,
    )
