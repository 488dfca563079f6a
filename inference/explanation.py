"""Texts with the words that speak for and against a network's answer, and those that make it unsure."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from transformers import BatchEncoding

from probattn.checks import check_integer, shortened
from probattn.inference.effect_results import AttentionEffects, words_of
from probattn.inference.effects import attention_effects

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
        doubt: what it adds to the entropy of the answer, in nats; None where it was not computed.
    """

    word: str
    text: int
    start: int
    end: int
    effect: float
    change: float | None
    answer: str | None
    doubt: float | None


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
        sized = [word for word in self.words if word.doubt is not None and word.doubt >= floor]
        return sorted(sized, key=lambda word: -(word.doubt or 0.0))[:number]

    def _leading(self, sign: float, number: int, floor: float) -> list[Word]:
        sized = [word for word in self.words if word.change is not None and sign * word.change >= floor]
        return sorted(sized, key=lambda word: -sign * (word.change or 0.0))[:number]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """The texts, with ``[+word]`` for the answer and ``[-word]`` against it, and what the leading words change."""
        marked = self._marked(lambda word, side: f"[{'+' if side > 0 else '-'}{word.word}]")
        lines = [f"{self.answer} {self.probability:.1%}", *marked]
        for title, words in (("for", self.words_for()), ("against", self.words_against())):
            lines += [f"  {title:8} {self._change(word)}" for word in words]
        return "\n".join([*lines, *(f"  {'doubt':8} {self._nats(word)}" for word in self.causes_of_doubt())])

    def _named(self, word: Word) -> str:
        """A word, with its number among the words where it stands several times."""
        several = sum(other.word == word.word for other in self.words) > 1
        return f"{word.word} (word {self.words.index(word) + 1})" if several else word.word

    def _change(self, word: Word) -> str:
        other = "" if word.answer is None else f", without it: {word.answer}"
        return f"{self._named(word)}  {100 * (word.change or 0.0):+.0f} points of probability{other}"

    def _nats(self, word: Word) -> str:
        return f"{self._named(word)}  {word.doubt or 0.0:+.2f} nats"

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
        rows += [("doubt", self._nats(word)) for word in self.causes_of_doubt()]
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
    method: Literal["knockout", "screened"] | None = None,
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
        method: "knockout", of all words, or "screened", of those whose slopes lead. Default: the former for texts of at
            most 40 words, else the latter.
        max_length: tokens that are read, with those that the tokenizer adds; the others are cut off, with a warning.
            Default: as many as the network has positions.

    Returns:
        An explanation for each text; print it, or ``to_html()`` and ``to_dict()``.

    Raises:
        TypeError: the network is none for classes of texts, or the tokenizer none of the fast ones, which know where a
            word stands in its text.
        ValueError: no text, a text without words or with none that the tokenizer knows, or another number of second
            texts.
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
    network = net.get_base_model() if hasattr(net, "get_base_model") else net
    labels = getattr(getattr(network, "config", None), "id2label", None) or {}
    if "ForSequenceClassification" not in type(network).__name__ or len(labels) < 2:
        raise TypeError(
            f"{OWNER}: expected a network that gives a text one of several classes, such as one of "
            f"AutoModelForSequenceClassification, got {type(network).__name__} of {len(labels)} labels; "
            "attention_effects takes other heads"
        )
    size = positions_of(network, tokenizer) if max_length is None else max_length
    check_integer(OWNER, "max_length", size, minimum=1)
    both = (firsts,) if seconds is None else (firsts, seconds)
    rows = list(zip(*both, strict=True))
    read = [_tokenized(tokenizer, number, row, size) for number, row in enumerate(rows, 1)]
    methods = [method or ("knockout" if len(words) <= SHORT else "screened") for words in read]
    explanations: dict[int, Explanation] = {}
    for kind in dict.fromkeys(methods):
        numbers = [number for number, of_row in enumerate(methods) if of_row == kind]
        for first in range(0, len(numbers), ROWS):
            some = numbers[first : first + ROWS]
            columns = list(map(list, zip(*(rows[number] for number in some), strict=True)))
            encoding = tokenizer(
                *columns,
                padding=True,
                padding_side="right",
                truncation=True,
                max_length=size,
                return_tensors="pt",
            )
            answer, doubt = (
                attention_effects(net, dict(encoding), words=encoding, method=kind, target=target)
                for target in ("answer", "doubt")
            )
            for row, number in enumerate(some):
                explanations[number] = _explanation(labels, row, rows[number], read[number], answer, doubt)
    return [explanations[number] for number in range(len(rows))]


def positions_of(network: Any, tokenizer: Any) -> int:
    """Tokens that a network has positions for; RoBERTa's begin after that of padding."""
    most = getattr(network.config, "max_position_embeddings", None) or tokenizer.model_max_length
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            most -= module.padding_idx + 1
            break
    return int(min(most, tokenizer.model_max_length))


def _tokenized(
    tokenizer: Any, number: int, row: tuple[str, ...], size: int
) -> list[tuple[int, int, int, int]]:
    """The words of a text that are read; a warning where some are not, an error where none is."""
    encoding = tokenizer(*([text] for text in row), truncation=True, max_length=size)
    words = list(_words(encoding, row))
    if not words:
        raise ValueError(f"{OWNER}: text {number}: expected a text with words, got {shortened(row[0])!r}")
    if all(token == tokenizer.unk_token_id for token in encoding["input_ids"][0][1:-1]):
        raise ValueError(
            f"{OWNER}: text {number}: the tokenizer knows none of its words: {shortened(row[0])!r}; load the tokenizer "
            "that the network was trained with"
        )
    if len(encoding["input_ids"][0]) == size and len(tokenizer(*row)["input_ids"]) > size:
        warnings.warn(
            f"{OWNER}: text {number} has more than {size} tokens: the words after them are not read",
            stacklevel=3,
        )
    return words


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
            float(doubt.effect[row, index]) if doubt.exact[row, index] else None,
        )
        for index, text, start, end in spans
    )
    probability = float(effects.answer_probability[row])
    # Several labels may hold, or none.
    answer = (
        labels[here]
        if effects.link == "softmax" or probability > 0.5
        else f"no label; nearest: {labels[here]}"
    )
    return Explanation(texts, answer, probability, float(doubt.value[0, row]), tuple(words))


def _words(encoding: BatchEncoding, texts: tuple[str, ...]) -> Iterator[tuple[int, int, int, int]]:
    """Number, text, first character and end of the words of the first row, without blanks."""
    spans: dict[int, tuple[int, int, int]] = {}
    numbers, which = words_of(encoding, 0), encoding.sequence_ids(0)
    for token, (number, text) in enumerate(zip(numbers, which, strict=True)):
        if number is not None:
            start, end = encoding.token_to_chars(0, token) or (0, 0)
            _, first, last = spans.get(number, (0, start, end))
            spans[number] = text or 0, min(first, start), max(last, end)
    for number, (text, start, end) in sorted(spans.items()):
        word = texts[text][start:end]
        if word.strip():
            yield number, text, start + len(word) - len(word.lstrip()), end - len(word) + len(word.rstrip())
