"""The words of an input that speak for and against its answer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import BatchEncoding

from probattn.inference.effect_results import words_of
from probattn.inference.explaining import explanations_of, method_of, word_spans
from probattn.inference.explanation import Explanation
from probattn.tasks.networks import Network


def explained(
    network: Network[Any],
    batch: dict[str, Tensor],
    texts: Sequence[str],
    names: Sequence[str],
    encoding: BatchEncoding | None = None,
) -> Explanation | None:
    """Effects of the words of an input, which is ``batch`` alone; None and a warning where there are none.

    ``names`` are those of the outcomes; ``encoding`` is what the tokenizer makes of the texts, of several windows all.
    """
    ids = batch["input_ids"][0].tolist()
    try:
        if not getattr(network.codec, "is_fast", False):
            raise TypeError(f"{type(network.codec).__name__} does not say where words stand in a text")
        if encoding is None:
            encoding = network.codec(*texts, truncation=True, max_length=len(ids))
        rows = [row for row, encoded in enumerate(encoding.encodings or ()) if encoded.ids == ids]
        if not rows:
            raise ValueError("its tokens are not those that the tokenizer makes of it")
        spans = list(word_spans(encoding, tuple(texts), rows[0]))
        words = torch.tensor([[-1 if word is None else word for word in words_of(encoding, rows[0])]])
        (made,) = explanations_of(
            network.program, batch, words, names, [(tuple(texts), spans)], method=method_of(spans)
        )
    except (TypeError, ValueError) as error:
        warnings.warn(f"an input is shown without its words: {error}", RuntimeWarning, stacklevel=2)
        return None
    return made
