"""The words of an input that speak for and against its answer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import BatchEncoding

from probattn.checks import PlainWarning
from probattn.inference.effect_results import words_of
from probattn.inference.explaining import explanations_of, method_of, word_spans
from probattn.inference.explanation import Explanation
from probattn.tasks.networks import Network


def explained(
    network: Network[Any],
    batch: dict[str, Tensor],
    texts: Sequence[str],
    names: Sequence[str],
    answer: str,
    encoding: BatchEncoding | None = None,
    row: int = 0,
) -> Explanation | None:
    """Effects of the words of an input, which is ``batch`` alone; None and a warning where there are none.

    ``names`` are those of the outcomes, of which ``answer`` is explained; ``encoding`` is what the tokenizer makes of
    the texts, and ``row`` the number of the window where there are several.
    """
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    ids = batch["input_ids"][mask].tolist()
    batch = {name: value[:, mask[0]] if value.shape == mask.shape else value for name, value in batch.items()}
    try:
        if not getattr(network.codec, "is_fast", False):
            raise TypeError(f"{type(network.codec).__name__} does not say where words stand in a text")
        if encoding is None:
            encoding = network.codec(*texts, truncation=True, max_length=len(ids))
        encodings = encoding.encodings or ()
        if row >= len(encodings) or encodings[row].ids != ids:
            raise ValueError("its tokens are not those that the tokenizer makes of it")
        spans = list(word_spans(encoding, tuple(texts), row))
        of_tokens = words_of(encoding, row, texts)
        words = torch.tensor([[-1 if word is None else word for word in of_tokens]])
        (made,) = explanations_of(
            network.program,
            batch,
            words,
            names,
            [(tuple(texts), spans)],
            method=method_of(spans),
            answer=list(names).index(answer),
        )
    except (TypeError, ValueError) as error:
        warnings.warn(f"an input is shown without its words: {error}", PlainWarning, stacklevel=2)
        return None
    return made
