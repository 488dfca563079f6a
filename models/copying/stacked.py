"""Layers of R runs at once: every parameter has a leading axis of runs, every row of it its own seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from probattn.sites.noise import seed_integers


def run_generators(seeds: Sequence[int], stream: int) -> list[torch.Generator]:
    """A generator for each run; equal seeds with other streams are independent of each other."""
    words = [
        int(np.random.SeedSequence(seed_integers((seed, stream))).generate_state(1)[0]) for seed in seeds
    ]
    return [torch.Generator().manual_seed(word) for word in words]


def uniform_rows(generators: Sequence[torch.Generator], shape: Sequence[int], fan_in: int) -> nn.Parameter:
    r"""Values :math:`\mathcal U(-1/\sqrt{n}, 1/\sqrt{n})` with n = ``fan_in``, ``[R, *shape]``, as torch's layers."""
    bound = 1 / math.sqrt(fan_in)
    rows = [torch.empty(*shape).uniform_(-bound, bound, generator=generator) for generator in generators]
    return nn.Parameter(torch.stack(rows))


def normal_rows(generators: Sequence[torch.Generator], shape: Sequence[int]) -> nn.Parameter:
    """Standard normal values ``[R, *shape]``, as those of ``nn.Embedding``."""
    return nn.Parameter(torch.stack([torch.randn(*shape, generator=generator) for generator in generators]))


class StackedLinear(nn.Module):
    """R linear layers, each with its own weight ``[E, D]`` and bias ``[E]``; ``generators`` draw them, one a run."""

    def __init__(self, in_features: int, out_features: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.weight = uniform_rows(generators, (out_features, in_features), in_features)
        self.bias = uniform_rows(generators, (out_features,), in_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs ``[R, N, D]`` to outputs ``[R, N, E]``."""
        return torch.baddbmm(self.bias[:, None], inputs, self.weight.mT)


class StackedLSTM(nn.Module):
    r"""R LSTM layers over sentences of words, each with its own embedding and its own weights.

    The equations are those of ``nn.LSTM`` after an ``nn.Embedding``, with torch's order of gates and initial values:

    .. math:: z_l = W_i e_{x_l} + b_i + b_h + W_h h_{l-1}, \quad
        c_l = \sigma(z^f) c_{l-1} + \sigma(z^i) \tanh(z^g), \quad h_l = \sigma(z^o) \tanh(c_l)

    :math:`W_i e_i + b_i + b_h` is made once for each word of the vocabulary and looked up: vocabularies here are
    smaller than batches. ``embedding`` is ``[R, V, D]``; layers may share one.
    """

    def __init__(self, embedding: nn.Parameter, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        width = embedding.shape[-1]
        self.embedding = embedding
        self.weight_input = uniform_rows(generators, (4 * width, width), width)
        self.weight_hidden = uniform_rows(generators, (4 * width, width), width)
        self.bias_input = uniform_rows(generators, (4 * width,), width)
        self.bias_hidden = uniform_rows(generators, (4 * width,), width)

    def forward(
        self, words: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Hidden states ``[R, B, L, D]`` of words ``[R, B, L]``, and the last hidden and cell state ``[R, B, D]``."""
        runs, size, _ = words.shape
        types = self.embedding.shape[1]
        minimum, maximum = torch.stack(words.aminmax()).tolist() if words.numel() else (0, 0)
        if minimum < 0 or maximum >= types:
            # the tables of all runs are one below the other: such a word would be one of another run
            raise IndexError(f"StackedLSTM: expected words in 0 .. {types - 1}, got {minimum} .. {maximum}")
        width = self.embedding.shape[-1]
        hidden, cell = state or (self.embedding.new_zeros(runs, size, width),) * 2
        recurrent = self.weight_hidden.mT
        states = []
        for gates in self._inputs(words).unbind(0):  # [R, B, 4D] each
            z = torch.baddbmm(gates, hidden, recurrent)
            keep, new, out = z[..., : 2 * width].sigmoid(), z[..., 2 * width : 3 * width], z[..., 3 * width :]
            add, forget = keep.chunk(2, dim=-1)
            cell = torch.addcmul(forget * cell, add, new.tanh())
            hidden = out.sigmoid() * cell.tanh()
            states.append(hidden)
        return torch.stack(states, dim=2), (hidden, cell)

    def _inputs(self, words: Tensor) -> Tensor:
        """Contribution of the words to the gates, ``[L, R, B, 4D]``."""
        bias = (self.bias_input + self.bias_hidden)[:, None]
        table = torch.baddbmm(bias, self.embedding, self.weight_input.mT)  # [R, V, 4D]
        first = torch.arange(len(words), device=words.device)[:, None, None] * self.embedding.shape[1]
        return nn.functional.embedding((words + first).permute(2, 0, 1), table.flatten(0, 1))
