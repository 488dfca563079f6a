"""Writing texts with beam search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from probattn.models.translation.network import BEGIN, END, PAD, UNKNOWN
from probattn.options import Count, Options


@dataclass(frozen=True)
class WritingOptions(Options):
    r"""Options of the search for a text.

    Args:
        num_beams: width of the beam, >= 1; 1 is greedy.
        length_penalty: :math:`\alpha`: finished texts are ranked by their log-probability over
            :math:`\text{length}^\alpha`; 1, the mean of a token, as GraphWriter was released.
        max_length: most tokens of a text, >= 1.
        batch_size: texts that are searched for at once, >= 1.

    Raises:
        ValueError: a number out of its range.
    """

    num_beams: Count = 4
    length_penalty: float = 1.0
    max_length: Count = 200
    batch_size: Count = 32


def write_texts(
    model: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    options: WritingOptions | None = None,
    *,
    suppress: Iterable[int] = (),
) -> Iterator[list[list[int]]]:
    """Writes a text for each row by transformers' own beam search, at the posterior expectation of latent attention.

    Args:
        model: a program whose ``net`` is a :class:`probattn.models.GraphWriterForGeneration`; it runs in evaluation
            mode, and every part of it is left in the mode it was in.
        batches: titles and graphs, as :class:`probattn.data.GraphTextCollate` makes them; texts are not looked at.
        options: of the search.
        suppress: tokens that no text has, beside padding, the unknown word and "begin".

    Yields:
        For each batch the tokens of its texts, without their ends: words, and V + k for entity k.
    """
    options = options or WritingOptions()
    net: Any = model.net
    shut = sorted({PAD, UNKNOWN, BEGIN, *suppress})
    for batch in batches:
        arguments = {
            name: value.to(net.device)
            for name, value in batch.items()
            if not name.startswith(("decoder_", "labels"))
        }
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            tokens: Tensor = net.generate(
                **arguments,
                num_beams=options.num_beams,
                length_penalty=options.length_penalty,
                do_sample=False,
                max_new_tokens=options.max_length,
                suppress_tokens=shut,
            )  # [B, T]
        finally:
            for module, mode in modes:
                module.training = mode
        yield [_text(row) for row in tokens.tolist()]


def _text(tokens: list[int]) -> list[int]:
    """Tokens after "begin" and before the first end."""
    end = tokens.index(END) if END in tokens else len(tokens)
    return [token for token in tokens[:end] if token not in (PAD, BEGIN)]
