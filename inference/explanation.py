"""Texts with the words that speak for and against a network's answer, and those that make it unsure."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor
from transformers import BatchEncoding

from probattn.checks import check_integer, shortened
from probattn.inference.effect_results import AttentionEffects, Target, Words, words_of
from probattn.inference.effects import effects_on_targets
from probattn.inference.posterior import link_of
from probattn.inference.predictive import Model
from probattn.sites.method import as_program

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
        effect: on the log-odds of the answer: positive for it, negative against it. Of a number, on its value.
        change: of the answer's probability, or of the number, in the same direction; None where it was not computed.
        answer: label of the answer without the word, where that is another.
        doubt: what it adds to the entropy of the answer, in nats; None where it was not computed, and for a number.
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
        answer: label of the answer, or name of the number.
        probability: of the answer; None of a number.
        entropy: of the prediction, in nats; None of a number.
        words: in the order of the texts.
        number: that the network predicts; None where it predicts classes.
    """

    texts: tuple[str, ...]
    answer: str
    probability: float | None
    entropy: float | None
    words: tuple[Word, ...]
    number: float | None = None

    @property
    def headline(self) -> str:
        """The answer and its probability, or the number."""
        if self.probability is None:
            return f"{self.answer} {self.number:.4g}"
        return f"{self.answer} {self.probability:.1%}"

    def words_for(self, number: int = LEADING, floor: float = FLOOR) -> list[Word]:
        """Words that speak for the answer, the largest first, of those that change it by the floor."""
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
        lines = [self.headline, *marked]
        for title, words in (("for", self.words_for()), ("against", self.words_against())):
            lines += [f"  {title:8} {self._change(word)}" for word in words]
        return "\n".join([*lines, *(f"  {'doubt':8} {self._nats(word)}" for word in self.causes_of_doubt())])

    def name_of(self, word: Word) -> str:
        """A word, with its number among the words where it stands several times."""
        several = sum(other.word == word.word for other in self.words) > 1
        return f"{word.word} (word {self.words.index(word) + 1})" if several else word.word

    def _change(self, word: Word) -> str:
        other = "" if word.answer is None else f", without it: {word.answer}"
        return f"{self.name_of(word)}  {self.size_of(word)}{' of probability' * (self.number is None)}{other}"

    def size_of(self, word: Word) -> str:
        """The change by a word: points of probability, or the number's."""
        change = word.change or 0.0
        return f"{100 * change:+.0f} points" if self.number is None else f"{change:+.3g}"

    def columns(self) -> dict[str, list[str]]:
        """Words for the answer, words against it and words that make it unsure, with their sizes, for a table."""

        def cell(word: Word) -> str:
            other = "" if word.answer is None else f", without it {word.answer}"
            return f"{self.name_of(word)} {self.size_of(word)}{other}"

        lists = {
            "words_for": self.words_for(),
            "words_against": self.words_against(),
            "unsure_about": self.causes_of_doubt(),
        }
        return {name: [cell(word) for word in words] for name, words in lists.items()}

    def _nats(self, word: Word) -> str:
        return f"{self.name_of(word)}  {word.doubt or 0.0:+.2f} nats"

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


class WordSpan(NamedTuple):
    """A word of a text, or of a pair of texts: its number, 0 or 1 for its text, first character and end."""

    number: int
    text: int
    start: int
    end: int


def explain(
    net: Any,
    tokenizer: Any,
    texts: str | Sequence[str],
    pairs: str | Sequence[str] | None = None,
    *,
    method: Literal["knockout", "screened"] | None = None,
    max_length: int | None = None,
) -> list[Explanation]:
    """Which words of a text speak for a network's answer, which against it, and which make it unsure.

    The effects through attention are those of :func:`attention_effects`, on the log-odds of the answer and on the
    entropy of the prediction; on its value where a network predicts a number.

    Args:
        net: a Hugging Face network for the classes, the labels or the number of a text, converted or not, trained with
            probattn or not.
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
        TypeError: the network is none for texts, or the tokenizer none of the fast ones, which know where a word stands
            in its text.
        ValueError: no text, a text without words or with none that the tokenizer knows, or another number of second
            texts.
    """
    rows = _rows(texts, pairs)
    labels = _labels(net)
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            f"{OWNER}: expected a fast tokenizer, which knows where words stand in a text, got "
            f"{type(tokenizer).__name__}; load it with AutoTokenizer"
        )
    size = positions_of(_base(net), tokenizer) if max_length is None else max_length
    check_integer(OWNER, "max_length", size, minimum=1)
    spans = [_tokenized(tokenizer, number, row, size) for number, row in enumerate(rows, 1)]
    methods = [method or method_of(words) for words in spans]
    explanations: dict[int, Explanation] = {}
    options = {"padding": True, "padding_side": "right", "truncation": True, "max_length": size}
    for kind in dict.fromkeys(methods):
        numbers = [number for number, of_row in enumerate(methods) if of_row == kind]
        for first in range(0, len(numbers), ROWS):
            some = numbers[first : first + ROWS]
            columns = list(map(list, zip(*(rows[number] for number in some), strict=True)))
            encoding = tokenizer(*columns, return_tensors="pt", **options)
            of_rows = [(rows[number], spans[number]) for number in some]
            made = explanations_of(net, dict(encoding), encoding, labels, of_rows, method=kind)
            explanations |= dict(zip(some, made, strict=True))
    return [explanations[number] for number in range(len(rows))]


def explanations_of(
    model: Model,
    batch: Mapping[str, Tensor],
    words: Words,
    labels: Sequence[str] | Mapping[int, str],
    rows: Sequence[tuple[tuple[str, ...], Sequence[WordSpan]]],
    *,
    method: Literal["knockout", "screened"],
    sites: Sequence[str] | None = None,
) -> list[Explanation]:
    """Explanations of a batch, whose rows have these texts with these words; arguments of :func:`attention_effects`."""
    numbers = link_of(OWNER, as_program(model)) == "identity"
    targets: list[Target] = ["answer"] if numbers else ["answer", "doubt"]
    effects = effects_on_targets(model, batch, targets, method=method, words=words, sites=sites)
    return [
        _explanation(labels, row, texts, spans, effects[0], None if numbers else effects[1])
        for row, (texts, spans) in enumerate(rows)
    ]


def method_of(words: Sequence[WordSpan]) -> Literal["knockout", "screened"]:
    """All words of a short text are left out in turn, of a longer one those whose slopes lead."""
    return "knockout" if len(words) <= SHORT else "screened"


def _rows(texts: str | Sequence[str], pairs: str | Sequence[str] | None) -> list[tuple[str, ...]]:
    """Texts, or pairs of them."""
    firsts = [texts] if isinstance(texts, str) else list(texts)
    seconds = [pairs] if isinstance(pairs, str) else None if pairs is None else list(pairs)
    if not firsts or (seconds is not None and len(seconds) != len(firsts)):
        got = "none" if not firsts else f"{len(firsts)} with {len(seconds or [])} second texts"
        raise ValueError(f"{OWNER}: expected texts, and a second text for each or none, got {got}")
    return list(zip(firsts, strict=True)) if seconds is None else list(zip(firsts, seconds, strict=True))


def _base(net: Any) -> Any:
    """The network within adapters."""
    return net.get_base_model() if hasattr(net, "get_base_model") else net


def _labels(net: Any) -> Mapping[int, str]:
    """Names of a network's classes."""
    network = _base(net)
    labels: Mapping[int, str] = getattr(getattr(network, "config", None), "id2label", None) or {}
    if "ForSequenceClassification" not in type(network).__name__ or not labels:
        raise TypeError(
            f"{OWNER}: expected a network that gives a text classes or a number, such as one of "
            f"AutoModelForSequenceClassification, got {type(network).__name__} of {len(labels)} labels; "
            "attention_effects takes other heads"
        )
    return labels


def positions_of(network: Any, tokenizer: Any) -> int:
    """Tokens that a network has positions for; RoBERTa's begin after that of padding."""
    most = getattr(network.config, "max_position_embeddings", None) or tokenizer.model_max_length
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            most -= module.padding_idx + 1
            break
    return int(min(most, tokenizer.model_max_length))


def _tokenized(tokenizer: Any, number: int, row: tuple[str, ...], size: int) -> list[WordSpan]:
    """The words of a text that are read; a warning where some are not, an error where none is."""
    encoding = tokenizer(*([text] for text in row), truncation=True, max_length=size)
    words = list(word_spans(encoding, row))
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
    labels: Sequence[str] | Mapping[int, str],
    row: int,
    texts: tuple[str, ...],
    spans: Sequence[WordSpan],
    effects: AttentionEffects,
    doubt: AttentionEffects | None,
) -> Explanation:
    here = int(effects.answer[row])
    exact = effects.exact[row].tolist()
    change, others = effects.change[row].tolist(), effects.answer_without[row].tolist()
    words = tuple(
        Word(
            texts[text][start:end],
            text,
            start,
            end,
            float(effects.effect[row, index]),
            change[index] if exact[index] else None,
            labels[others[index]] if exact[index] and others[index] not in (-1, here) else None,
            float(doubt.effect[row, index]) if doubt is not None and exact[index] else None,
        )
        for index, text, start, end in spans
    )
    value = float(effects.answer_probability[row])
    if doubt is None:
        return Explanation(texts, labels[here], None, None, words, value)
    # Several labels may hold, or none.
    none = effects.link == "sigmoid" and value <= 0.5
    answer = f"no label; nearest: {labels[here]}" if none else labels[here]
    return Explanation(texts, answer, value, float(doubt.value[0, row]), words)


def word_spans(encoding: BatchEncoding, texts: tuple[str, ...], row: int = 0) -> Iterator[WordSpan]:
    """The words of a row, without blanks; those of no character are left out."""
    spans: dict[int, tuple[int, int, int]] = {}
    numbers, which = words_of(encoding, row), encoding.sequence_ids(row)
    for token, (number, text) in enumerate(zip(numbers, which, strict=True)):
        if number is not None:
            start, end = encoding.token_to_chars(row, token) or (0, 0)
            _, first, last = spans.get(number, (0, start, end))
            spans[number] = text or 0, min(first, start), max(last, end)
    for number, (text, start, end) in sorted(spans.items()):
        word = texts[text][start:end]
        if word.strip():
            blanks = len(word) - len(word.lstrip()), len(word) - len(word.rstrip())
            yield WordSpan(number, text, start + blanks[0], end - blanks[1])
