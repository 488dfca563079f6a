"""Explains texts: the words that speak for and against a network's answer, and those that make it unsure."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor
from transformers import BatchEncoding

from probattn.checks import PlainWarning, check_integer, shortened
from probattn.inference.effect_results import AttentionEffects, Words, words_of
from probattn.inference.effect_targets import Target
from probattn.inference.effects import Request, effects_on_targets
from probattn.inference.explanation import Explanation, Word
from probattn.inference.posterior import link_of
from probattn.inference.predictive import Model
from probattn.sites.method import as_program, base_of

OWNER = "explain"
SHORT = 40
"""Words of a text of which all are left out in turn, by default."""
LEADING_OF_PAIRS = 6
"""Words on each side of a pair of texts whose slopes are followed by knock-outs; slopes order those of a pair worse."""
ROWS = 8
"""Texts of a pass."""
UNLIMITED = 10**9
"""What tokenizers without a limit have is more."""


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
    """Finds the words of a text for and against a network's prediction, and those that make it uncertain.

    Computes :func:`attention_effects` of the words on the log-odds of the predicted class and on the entropy of the
    prediction; in regression on the (first) predicted number.

    Args:
        net: a Hugging Face network for classes, labels or a number of a text; conversion is not needed.
        tokenizer: the network's fast tokenizer.
        texts: one text or several.
        pairs: the second texts, as many as ``texts``, for a network of text pairs.
        method: "knockout" masks each word in turn; "screened" masks only the words with the largest slopes (three of
            each sign, six in pairs), and the other words have no ``change``. Default: "knockout" for texts of at most
            40 words, else "screened".
        max_length: maximum number of tokens, including special tokens; longer texts are truncated with a warning.
            Default: the number of positions of the network.

    Returns:
        One explanation per text, to print or to convert with ``to_html()`` and ``to_dict()``. Probabilities are at
        the posterior expectation, which differs from the mean over draws.

    Raises:
        TypeError: the network is not of ``AutoModelForSequenceClassification``, or the tokenizer is not a fast one.
        ValueError: no text, a text without known words, or unequal numbers of texts and second texts.
    """
    rows = _rows(texts, pairs)
    labels = _labels(net)
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            f"{OWNER}: expected a fast tokenizer, which knows where words stand in a text, got "
            f"{type(tokenizer).__name__}; load it with AutoTokenizer"
        )
    size = positions_of(base_of(net), tokenizer) if max_length is None else max_length
    check_integer(OWNER, "max_length", size, minimum=1)
    cut = {"truncation": True, "max_length": size} if size < UNLIMITED else {}
    spans = [_tokenized(tokenizer, number, row, cut) for number, row in enumerate(rows, 1)]
    methods = [method or method_of(words) for words in spans]
    explanations: dict[int, Explanation] = {}
    config = base_of(net).config
    alone = tokenizer.pad_token is None or getattr(config, "pad_token_id", None) is None
    options = cut if alone else {**cut, "padding": True, "padding_side": "right"}
    together = 1 if alone else ROWS  # without padding, texts of one length alone
    for kind in dict.fromkeys(methods):
        numbers = [number for number, of_row in enumerate(methods) if of_row == kind]
        for first in range(0, len(numbers), together):
            some = numbers[first : first + together]
            columns = list(map(list, zip(*(rows[number] for number in some), strict=True)))
            encoding = tokenizer(*columns, return_tensors="pt", **options)
            of_rows = [(rows[number], spans[number]) for number in some]
            words = [words_of(encoding, row, texts) for row, (texts, _) in enumerate(of_rows)]
            batch = dict(encoding)
            if getattr(config, "type_vocab_size", 2) < 2:
                batch.pop("token_type_ids", None)
            size_of_pass = 1 if alone else None
            made = explanations_of(net, batch, words, labels, of_rows, method=kind, chunk_size=size_of_pass)
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
    answer: int | None = None,
    chunk_size: int | None = None,
) -> list[Explanation]:
    """Explanations of a batch, whose rows have these texts with these words; arguments of :func:`attention_effects`.

    ``answer`` is what is explained where another prediction has said it, as the mean of draws does.
    """
    numbers = link_of(OWNER, as_program(model)) == "identity"
    explained: Target = "answer" if answer is None else answer
    targets: list[Target] = [explained] if numbers else [explained, "doubt"]
    of_pairs = method == "screened" and any(len(texts) > 1 for texts, _ in rows)
    request = Request(targets, LEADING_OF_PAIRS if of_pairs else method, chunk_size=chunk_size)
    effects = effects_on_targets(model, batch, request, words)
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
    others = [type(text).__name__ for text in (*firsts, *(seconds or [])) if not isinstance(text, str)]
    if others:
        raise TypeError(
            f"{OWNER}: expected strings, of pairs the second texts as the argument pairs, got {others[0]}"
        )
    return list(zip(firsts, strict=True)) if seconds is None else list(zip(firsts, seconds, strict=True))


def _labels(net: Any) -> Mapping[int, str]:
    """Names of a network's classes."""
    network = base_of(net)
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


def _tokenized(tokenizer: Any, number: int, row: tuple[str, ...], cut: Mapping[str, Any]) -> list[WordSpan]:
    """The words of a text that are read; a warning where some are not, an error where none is."""
    encoding = tokenizer(*([text] for text in row), **cut)
    words = list(word_spans(encoding, row))
    if not words:
        raise ValueError(f"{OWNER}: text {number}: expected a text with words, got {shortened(row[0])!r}")
    tokens = zip(encoding["input_ids"][0], encoding.sequence_ids(0), strict=True)
    if all(token == tokenizer.unk_token_id for token, text in tokens if text is not None):
        raise ValueError(
            f"{OWNER}: text {number}: the tokenizer knows none of its words: {shortened(row[0])!r}; load the tokenizer "
            "that the network was trained with"
        )
    size = cut.get("max_length")
    if len(encoding["input_ids"][0]) == size and len(tokenizer(*row)["input_ids"]) > size:
        warnings.warn(
            f"{OWNER}: text {number} has more than {size} tokens: the others are not read",
            PlainWarning,
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
    value, best = float(effects.answer_probability[row]), int(effects.most_probable[row])
    exact = effects.exact[row].tolist()
    change, others = effects.change[row].tolist(), effects.answer_without[row].tolist()

    def other(index: int) -> str | None:
        """The answer without a word, where it is another one."""
        if not exact[index]:
            return None
        if effects.link == "sigmoid":
            holds, left = value > 0.5, value - change[index] > 0.5
            return None if holds == left else labels[here] if left else f"not {labels[here]}"
        return labels[others[index]] if others[index] not in (-1, best) else None

    words = tuple(
        Word(
            texts[text][start:end],
            text,
            start,
            end,
            float(effects.effect[row, index]),
            change[index] if exact[index] else None,
            other(index),
            float(doubt.effect[row, index]) if doubt is not None and exact[index] else None,
        )
        for index, text, start, end in spans
    )
    if doubt is None:
        return Explanation(texts, labels[here], None, None, words, value)
    none = effects.link == "sigmoid" and value <= 0.5  # of several labels none may hold
    answer = f"{labels[here]} (does not hold)" if none else labels[here]
    return Explanation(texts, answer, value, float(doubt.value[0, row]), words)


def word_spans(encoding: BatchEncoding, texts: tuple[str, ...], row: int = 0) -> Iterator[WordSpan]:
    """The words of a row, without blanks; those of no character are left out."""
    spans: dict[int, tuple[int, int, int]] = {}
    numbers, which = words_of(encoding, row, texts), encoding.sequence_ids(row)
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
