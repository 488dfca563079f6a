"""Texts with the words that speak for and against a network's answer, and those that make it unsure."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformers import BatchEncoding

from probattn.inference.effect_results import AttentionEffects, words_of
from probattn.inference.effects import Method, attention_effects

OWNER = "explain"
SHORT = 40
"""Words of a text of which all are left out in turn, by default."""
ROWS = 8
"""Texts of a pass."""
FLOOR = 0.01
"""Smallest change of a probability, and of an entropy in nats, that is listed."""
LEADING = 3
"""Words of a list."""


@dataclass(frozen=True)
class Word:
    """A word of a text and what it does to the answer by being attended to.

    Attributes:
        word: the word.
        text: 0, or 1 in the second text of a pair.
        start: its first character in the text.
        end: the character after its last.
        effect: on the log-odds of the answer: positive for it, negative against it.
        change: of the answer's probability, in the same direction; None where it was not computed.
        answer: label of the answer without the word, where that is another.
        doubt: what it adds to the entropy of the answer, in nats.
    """

    word: str
    text: int
    start: int
    end: int
    effect: float
    change: float | None
    answer: str | None
    doubt: float


@dataclass(frozen=True)
class Explanation:
    """A text, or a pair of texts, with its answer and its words.

    Attributes:
        texts: one or two.
        answer: label of the answer.
        probability: of it.
        entropy: of the prediction, in nats.
        words: in the order of the texts.
    """

    texts: tuple[str, ...]
    answer: str
    probability: float
    entropy: float
    words: tuple[Word, ...]

    def words_for(self, number: int = LEADING, floor: float = FLOOR) -> list[Word]:
        """Words that speak for the answer, the largest first, of those that change its probability by the floor."""
        return self._leading(1.0, number, floor)

    def words_against(self, number: int = LEADING, floor: float = FLOOR) -> list[Word]:
        """Words that speak against the answer, likewise."""
        return self._leading(-1.0, number, floor)

    def causes_of_doubt(self, number: int = LEADING, floor: float = FLOOR) -> list[Word]:
        """Words that add to the entropy, the largest first, of those that add as many nats as the floor."""
        words = sorted(self.words, key=lambda word: -word.doubt)
        return [word for word in words[:number] if word.doubt >= floor]

    def _leading(self, sign: float, number: int, floor: float) -> list[Word]:
        sized = [word for word in self.words if word.change is not None and sign * word.change >= floor]
        return sorted(sized, key=lambda word: -sign * (word.change or 0.0))[:number]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """The texts, with ``[+word]`` for the answer and ``[-word]`` against it, and what the leading words change."""
        return self.text(lambda word, side: f"[{'+' if side > 0 else '-'}{word.word}]")

    def text(self, mark: Callable[[Word, int], str], plain: Callable[[str], str] = str) -> str:
        """As it prints; ``mark`` makes a word that is listed, with its side, 1 or -1, and ``plain`` all else."""
        lines = [f"{plain(self.answer)} {self.probability:.1%}", *self._marked(mark, plain)]
        for title, words in (("for", self.words_for()), ("against", self.words_against())):
            lines += [f"  {title:8} {plain(self._change(word))}" for word in words]
        lines += [
            f"  {'doubt':8} {plain(word.word)}  {word.doubt:+.2f} nats" for word in self.causes_of_doubt()
        ]
        return "\n".join(lines)

    @staticmethod
    def _change(word: Word) -> str:
        other = "" if word.answer is None else f", without it: {word.answer}"
        return f"{word.word}  {100 * (word.change or 0.0):+.0f} points of probability{other}"

    def to_html(self) -> str:
        """An HTML fragment: words for the answer on blue, underlined, words against it on orange, dotted."""

        def marked(word: Word, side: int) -> str:
            color, line = ("64,120,192", "solid") if side > 0 else ("224,130,40", "dotted")
            style = f"background:rgba({color},.35);text-decoration:underline {line}"
            title = html.escape(self._change(word), quote=True)
            return f'<span style="{style}" title="{title}">{html.escape(word.word)}</span>'

        texts = "".join(f"<p>{text}</p>" for text in self._marked(marked, html.escape))
        rows = [("for", self._change(word)) for word in self.words_for()]
        rows += [("against", self._change(word)) for word in self.words_against()]
        rows += [("doubt", f"{word.word}  {word.doubt:+.2f} nats") for word in self.causes_of_doubt()]
        table = "".join(f"<tr><th>{title}</th><td>{html.escape(line)}</td></tr>" for title, line in rows)
        table = table and f"<table>{table}</table>"
        return f"<p><strong>{html.escape(self.answer)}</strong> {self.probability:.1%}</p>{texts}{table}"

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


def explain(
    net: Any,
    tokenizer: Any,
    texts: str | Sequence[str],
    pairs: str | Sequence[str] | None = None,
    *,
    method: Method | None = None,
    max_length: int | None = None,
) -> list[Explanation]:
    """Which words of a text speak for a classifier's answer, which against it, and which make it unsure.

    The effects through attention are those of :func:`attention_effects`, on the log-odds of the answer and on the
    entropy of the prediction.

    Args:
        net: a Hugging Face network that classifies texts, converted or not, trained with probattn or not.
        tokenizer: its fast tokenizer.
        texts: one, or several.
        pairs: second texts, one for each, of a network that reads pairs.
        method: as of :func:`attention_effects`. Default: "knockout" of texts of at most 40 words, else "screened".
        max_length: tokens that are read; the others are cut off. Default: those of the network's positions.

    Returns:
        An explanation for each text; print it, or ``to_html()`` and ``to_dict()``.

    Raises:
        TypeError: the tokenizer is none of the fast ones, which know where a word stands in its text.
        ValueError: no text, a text without words, or another number of second texts.
    """
    firsts = [texts] if isinstance(texts, str) else list(texts)
    seconds = [pairs] if isinstance(pairs, str) else None if pairs is None else list(pairs)
    if not firsts or (seconds is not None and len(seconds) != len(firsts)):
        got = "none" if not firsts else f"{len(firsts)} with {len(seconds or [])} second texts"
        raise ValueError(f"{OWNER}: expected texts, and a second text for each or none, got {got}")
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            f"{OWNER}: expected a fast tokenizer, which knows where words stand in a text, got "
            f"{type(tokenizer).__name__}; load it with AutoTokenizer"
        )
    size = max_length or min(getattr(net.config, "max_position_embeddings", 512), tokenizer.model_max_length)
    explanations: list[Explanation] = []
    for first in range(0, len(firsts), ROWS):
        rows = slice(first, first + ROWS)
        both = (firsts[rows],) if seconds is None else (firsts[rows], seconds[rows])
        encoding = tokenizer(*both, padding=True, truncation=True, max_length=size, return_tensors="pt")
        explanations += _explained(net, encoding, list(zip(*both, strict=True)), method)
    return explanations


def _explained(
    net: Any, encoding: BatchEncoding, texts: Sequence[tuple[str, ...]], method: Method | None
) -> Iterator[Explanation]:
    spans = [list(_words(encoding, row)) for row in range(len(texts))]
    if empty := [text for text, words in zip(texts, spans, strict=True) if not words]:
        raise ValueError(f"{OWNER}: expected texts with words, got {empty[0][0]!r}")
    method = method or ("knockout" if max(map(len, spans)) <= SHORT else "screened")
    answer, doubt = (
        attention_effects(net, dict(encoding), words=encoding, method=method, target=target)
        for target in ("answer", "doubt")
    )
    for row, (of_row, words) in enumerate(zip(texts, spans, strict=True)):
        yield _explanation(net.config.id2label, row, of_row, words, answer, doubt)


def _explanation(
    labels: Any,
    row: int,
    texts: tuple[str, ...],
    spans: Sequence[tuple[int, int, int, int]],
    effects: AttentionEffects,
    doubt: AttentionEffects,
) -> Explanation:
    here = int(effects.answer[row])
    exact = effects.exact[row].tolist()
    change, others = effects.change[row].tolist(), effects.answer_without[row].tolist()
    words = (
        Word(
            texts[text][start:end],
            text,
            start,
            end,
            float(effects.effect[row, index]),
            change[index] if exact[index] else None,
            labels[others[index]] if exact[index] and others[index] != here else None,
            float(doubt.effect[row, index]),
        )
        for index, text, start, end in spans
    )
    return Explanation(
        texts, labels[here], float(effects.answer_probability[row]), float(doubt.value[0, row]), tuple(words)
    )


def _words(encoding: BatchEncoding, row: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, text, first character and end of the words of a row."""
    spans: dict[int, tuple[int, int, int]] = {}
    numbers, texts = words_of(encoding, row), encoding.sequence_ids(row)
    for token, (number, text) in enumerate(zip(numbers, texts, strict=True)):
        if number is not None:
            characters = encoding.token_to_chars(row, token)
            start, end = characters or (0, 0)
            _, first, last = spans.get(number, (0, start, end))
            spans[number] = text or 0, min(first, start), max(last, end)
    for number, span in sorted(spans.items()):
        yield number, *span
