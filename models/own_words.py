"""An LSTM over sequences of different lengths."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

State = tuple[Tensor, Tensor]
"""Hidden and cell state of every layer and direction, ``[layers * directions, B, u]`` each."""


def read_own_words(
    lstm: nn.LSTM, embedded: Tensor, attention_mask: Tensor | None, start: State | None = None
) -> tuple[Tensor, State]:
    """Runs an LSTM over each sequence's own words alone, wherever padding stands.

    Args:
        lstm: batch first, of one direction or two.
        embedded: words as vectors ``[B, S, E]``, S >= 1.
        attention_mask: ``[B, S]``, 0 at padding; None where there is none. A sequence without any word is read as one
            of its first place.
        start: the state it starts from; None for zeros.

    Returns:
        States ``[B, S, directions * u]``, 0 at padding, and the state after each sequence's last own word.

    Example:
        >>> lstm, words = nn.LSTM(3, 2, batch_first=True, bidirectional=True), torch.randn(1, 4, 3)
        >>> states, _ = read_own_words(lstm, words, torch.tensor([[0, 1, 0, 1]]))
        >>> torch.allclose(states[:, 1::2], lstm(words[:, 1::2])[0]), states[:, 0].tolist()
        (True, [[0.0, 0.0, 0.0, 0.0]])
    """
    if embedded.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        # torch takes oneDNN's LSTM there, which many processors have in float32 alone
        own = next(lstm.parameters()).dtype
        begin = None if start is None else (start[0].to(own), start[1].to(own))
        with torch.autocast("cpu", enabled=False):
            return _read(lstm, embedded.to(own), attention_mask, begin)
    return _read(lstm, embedded, attention_mask, start)


def _read(
    lstm: nn.LSTM, embedded: Tensor, attention_mask: Tensor | None, start: State | None
) -> tuple[Tensor, State]:
    states: Tensor
    last: State
    if attention_mask is None:
        states, last = lstm(embedded, start)
        return states, last
    real = attention_mask.bool()
    front = torch.argsort(real.logical_not().byte(), dim=1, stable=True)  # own words first, in their order
    lengths = real.sum(dim=1).clamp_min(1).cpu()
    words = embedded.gather(1, front[..., None].expand_as(embedded))
    packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
    packed_states, last = lstm(packed, start)
    states, _ = pad_packed_sequence(packed_states, batch_first=True, total_length=real.shape[1])
    return states.gather(1, front.argsort(dim=1)[..., None].expand_as(states)) * real[..., None], last
