"""Texts with the words that speak for and against a network's answer, and those that make it unsure."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

FLOOR = 0.01
"""Smallest change of a probability, and of an entropy in nats, that is listed."""
LEADING = 3
"""Words of a list."""


@dataclass(frozen=True)
class Word:
    """A word of a text, with the effect of the attention to it on the prediction.

    Attributes:
        word: the word.
        text: 0, or 1 for a word of the second text of a pair.
        start: position of the word's first character in the text, from 0.
        end: position after the word's last character.
        effect: effect on the log-odds of the answer (positive: for it), in regression on the predicted number.
        change: probability of the answer, or predicted number, with the word minus that without it; None if not masked.
        answer: label of the answer without the word if it is another one; else None.
        doubt: entropy in nats with the word minus that without it; None if not masked, and in regression.
    """

    word: str
    text: int
    start: int
    end: int
    effect: float
    change: float | None
    answer: str | None
    doubt: float | None


@dataclass(frozen=True, repr=False)
class Explanation:
    """A text, or a pair of texts, with the network's answer and the effects of the words on it.

    Attributes:
        texts: the text, or both texts of a pair.
        answer: label of the most probable class, or name of the predicted number.
        probability: probability of the answer; None in regression.
        entropy: entropy of the prediction in nats; None in regression.
        words: all words, in the order of the texts.
        number: the predicted number; None for classes.
    """

    texts: tuple[str, ...]
    answer: str
    probability: float | None
    entropy: float | None
    words: tuple[Word, ...]
    number: float | None = None

    @property
    def headline(self) -> str:
        """Text with the answer and its probability, or with the predicted number."""
        if self.probability is None:
            return f"{self.answer} {self.number:.4g}"
        return f"{self.answer} {self.probability:.1%}"

    def words_for(self, number: int = LEADING, floor: float = FLOOR) -> list[Word]:
        """Up to ``number`` words that raise the answer's probability by ``floor`` or more, the largest change first."""
        return self._leading(1.0, number, floor)

    def words_against(self, number: int = LEADING, floor: float = FLOOR) -> list[Word]:
        """Up to ``number`` words that lower the answer's probability by ``floor`` or more, the largest change first."""
        return self._leading(-1.0, number, floor)

    def causes_of_doubt(self, number: int = LEADING, floor: float = FLOOR) -> list[Word]:
        """Words that raise the entropy by ``floor`` nats and also change the answer's probability by ``floor``."""
        sized = [word for word in self.words if word.doubt is not None and word.doubt >= floor]
        sized = [word for word in sized if abs(word.change or 0.0) >= floor]
        return sorted(sized, key=lambda word: -(word.doubt or 0.0))[:number]

    def _leading(self, sign: float, number: int, floor: float) -> list[Word]:
        sized = [word for word in self.words if word.change is not None and sign * word.change >= floor]
        return sorted(sized, key=lambda word: -sign * (word.change or 0.0))[:number]

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        """The texts, with ``[+word]`` for the answer and ``[-word]`` against it, and what the leading words change."""
        marked = self._marked(lambda word, side: f"[{'+' if side > 0 else '-'}{word.word}]")
        lines = [self.headline, *marked, *(f"  {title:8} {line}" for title, line in self._changes())]
        return "\n".join([*lines, *([f"  {self.screened}"] if self.screened else [])])

    def _changes(self) -> list[tuple[str, str]]:
        """Text of what each listed word changes, with what it is listed for."""
        changes = [("for", self._change(word)) for word in self.words_for()]
        changes += [("against", self._change(word)) for word in self.words_against()]
        return changes + [("doubt", self._nats(word)) for word in self.causes_of_doubt()]

    @property
    def screened(self) -> str:
        """Text that says how many words were masked in turn; empty if all were."""
        tried = sum(word.change is not None for word in self.words)
        return "" if tried == len(self.words) else f"{tried} of {len(self.words)} words were masked in turn"

    def name_of(self, word: Word) -> str:
        """The word as text, with its number from 1 if the text has it several times."""
        several = sum(other.word == word.word for other in self.words) > 1
        return f"{word.word} (word {self.words.index(word) + 1})" if several else word.word

    def _change(self, word: Word) -> str:
        other = "" if word.answer is None else f", without it: {word.answer}"
        return f"{self.name_of(word)}  {self.size_of(word)}{' of probability' * (self.number is None)}{other}"

    def size_of(self, word: Word) -> str:
        """The word's ``change`` as text: percentage points of probability, or units of the predicted number."""
        change = word.change or 0.0
        return f"{100 * change:+.0f} points" if self.number is None else f"{change:+.3g}"

    def columns(self) -> dict[str, list[str]]:
        """Columns of a table by name: words for the answer, against it, and that cause doubt, with their changes."""

        def cell(word: Word, size: str) -> str:
            other = "" if word.answer is None else f", without it {word.answer}"
            return f"{self.name_of(word)} {size}{other}"

        doubts = ((word, f"{word.doubt:+.2f} nats, {self.size_of(word)}") for word in self.causes_of_doubt())
        return {
            "words_for": [cell(word, self.size_of(word)) for word in self.words_for()],
            "words_against": [cell(word, self.size_of(word)) for word in self.words_against()],
            "unsure_about": [cell(word, size) for word, size in doubts],
        }

    def _nats(self, word: Word) -> str:
        return f"{self.name_of(word)}  {word.doubt or 0.0:+.2f} nats"

    def to_html(self) -> str:
        """An HTML fragment: words for the answer on blue with a solid line, against it on orange with a dotted line."""

        def marked(word: Word, side: int) -> str:
            color, line = ("64,120,192", "solid") if side > 0 else ("224,130,40", "dotted")
            style = f"background:rgba({color},.35);text-decoration:underline {line}"
            title = html.escape(self._change(word), quote=True)
            return f'<span style="{style}" title="{title}">{html.escape(word.word)}</span>'

        texts = "".join(f'<p dir="auto">{text}</p>' for text in self._marked(marked, html.escape))
        rows = (f"<tr><th>{title}</th><td>{html.escape(line)}</td></tr>" for title, line in self._changes())
        table = "".join(rows)
        table = table and f"<table>{table}</table>"
        table += f"<p>{self.screened}</p>" if self.screened else ""
        return f"<p><strong>{html.escape(self.headline)}</strong></p>{texts}{table}"

    def _marked(self, mark: Callable[[Word, int], str], plain: Callable[[str], str] = str) -> Iterator[str]:
        """The texts with the listed words as ``mark`` makes them of a word and its side, 1 or -1."""
        sides = {(word.text, word.start): (word, 1) for word in self.words_for()}
        sides |= {(word.text, word.start): (word, -1) for word in self.words_against()}
        for number, text in enumerate(self.texts):
            pieces, end = [], 0
            for start in sorted(start for which, start in sides if which == number):
                word, side = sides[number, start]
                pieces += [plain(text[end:start]), mark(word, side)]
                end = word.end
            yield "".join([*pieces, plain(text[end:])])
