"""The words that speak for and against an answer, and those that make it unsure: records and section of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from probattn.inference.explanation import FLOOR, Explanation, Word
from probattn.report.attention import REASONS, Example, Reason, answer_words, title_of
from probattn.report.markup import Section, exact
from probattn.report.measures import signed
from probattn.report.record import Record
from probattn.report.svg import isolated
from probattn.terminal import printable


class WordsExample(Record):
    """An input and the effects of its words on the prediction.

    Attributes:
        example: the input and its prediction.
        reason: why the input is shown.
        explanation: effects of its words, computed at the posterior expectation of attention.
    """

    example: Example
    reason: Reason
    explanation: Explanation


def words_section(examples: Sequence[WordsExample]) -> Section | None:
    """The section on words; None without examples."""
    if not examples:
        return None
    heading = "Which words speak for the answer, and which against it?"
    return Section("words", "Words", heading, "words.html", {"examples": list(map(_shown, examples))})


def _shown(item: WordsExample) -> dict[str, Any]:
    """One example for the template."""
    made = item.explanation
    return {
        "reason": REASONS[item.reason],
        "title": title_of(item.example),
        "answer": answer_words(item.example),
        "expected": made.headline,
        "differs": made.probability is not None
        and (made.answer, f"{made.probability:.0%}")
        != (item.example.predicted, f"{item.example.probability:.0%}"),
        "screened": made.screened,
        "texts": [list(_pieces(made, number)) for number in range(len(made.texts))],
        "groups": _groups(made),
        "doubts": [(made.name_of(word), _nats(word)) for word in made.causes_of_doubt()],
    }


def _pieces(made: Explanation, text: int) -> Iterator[tuple[str, str, str, str]]:
    """A text in parts: each with its side, its share of the largest change, and its hint; blanks and the like bare."""
    whole, end = made.texts[text], 0
    largest = max((abs(word.change) for word in made.words if word.change is not None), default=0.0)
    for word in made.words:
        if word.text != text or word.change is None or abs(word.change) < FLOOR:
            continue
        yield printable(whole[end : word.start]), "", "", ""
        side = "for" if word.change > 0 else "against"
        share = f"{abs(word.change) / largest:.3f}"
        yield printable(word.word), side, share, isolated(f"{made.size_of(word)} {side}")
        end = word.end
    yield printable(whole[end:]), "", "", ""


def _groups(made: Explanation) -> list[tuple[str, list[dict[str, Any]]]]:
    """The words that lead, by their side."""
    answer = isolated(made.answer)
    groups = {f"For {answer}": made.words_for(), f"Against {answer}": made.words_against()}
    return [(name, [_row(made, word) for word in words]) for name, words in groups.items() if words]


def _row(made: Explanation, word: Word) -> dict[str, Any]:
    assert word.change is not None
    assert made.probability is not None
    left = made.probability - word.change
    without = exact(left, f"{left:.0%}")
    if word.answer is not None:
        without = Markup("{} ({} {})").format(isolated(word.answer), isolated(made.answer), without)
    return {
        "name": made.name_of(word),
        "size": exact(word.change, signed(made.size_of(word))),
        "entropy": _nats(word),
        "without": without,
    }


def _nats(word: Word) -> Markup:
    return exact(word.doubt, "" if word.doubt is None else signed(f"{word.doubt:+.2f} nats"))
