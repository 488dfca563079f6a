"""The copying model of Snell et al. 2021, many runs as one batched program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.models.copying.stacked import (
    StackedLinear,
    StackedLSTM,
    normal_rows,
    run_generators,
    uniform_rows,
)
from probattn.models.copying.tasks import CopyBatch
from probattn.options import Count, Options
from probattn.probes import AttentionMode, attention_weights

_BODY, _HEADS = 0, 1
"""Random streams of initial values: heads can be drawn again while everything else stays."""


@dataclass(frozen=True)
class CopyingOptions(Options):
    """Size of the copying model.

    Args:
        words: V, the vocabulary of input and output.
        width: D, of embeddings, states and the hidden layer; 256 in the paper.
        heads: K >= 1.
        attention: "learned", or "uniform": 1 / L at every position, whatever the scores.

    Raises:
        ValueError: an option out of its range.
    """

    words: Count
    width: Count = 256
    heads: Count = 1
    attention: AttentionMode = "learned"


class CopyingOutput(NamedTuple):
    """Output of the model for a batch.

    Attributes:
        logits: of the output words, ``[R, B, T, V]``.
        weights: of every head, ``[R, K, B, T, L]``.
        states: h, ``[R, B, L, D]``.
        queries: s, ``[R, B, T, D]``.
    """

    logits: Tensor
    weights: Tensor
    states: Tensor
    queries: Tensor


class CopyingRuns(nn.Module):
    r"""R runs of an LSTM encoder-decoder with dot attention, as one program.

    One LSTM layer in one direction reads the input, another the output so far, from the encoder's last state on, and

    .. math:: a^{(k)}_{t,l} = s_t^T W^{(k)} h_l, \quad \alpha^{(k)}_t = \mathrm{softmax}(a^{(k)}_t), \quad
        p_t = N\Bigl(\Bigl[\sum_k \sum_l \alpha^{(k)}_{t,l} h_l,\; s_t\Bigr]\Bigr)

    (Snell et al. 2021, Eq. 1, 2, 20, 21), with N one hidden ReLU layer before the softmax, and no context fed back into
    the decoder. The decoder reads the right words before t; in place of the first it reads a word of its own.

    All parameters have a leading axis of runs and no run sees another's, so that the gradient of the sum of all losses
    is each run's own, and an optimiser that works entry by entry, such as Adam, trains R separate models.

    Args:
        options: sizes and attention.
        seeds: of the initial values, one a run.
        head_seeds: of W, ``[R][K]``, where heads are to be drawn apart from the rest; by default they follow ``seeds``.

    Attributes:
        attention: W, ``[R, K, D, D]``.

    Raises:
        ValueError: no seed, or head seeds that are not K to each run.

    Example:
        >>> model = CopyingRuns(CopyingOptions(words=6, width=8), seeds=[0, 1, 2])
        >>> source = torch.randint(6, (3, 4, 5))
        >>> output = model(source, source)
        >>> output.logits.shape, output.weights.shape
        (torch.Size([3, 4, 5, 6]), torch.Size([3, 1, 4, 5, 5]))
    """

    def __init__(
        self,
        options: CopyingOptions,
        seeds: Sequence[int],
        head_seeds: Sequence[Sequence[int]] | None = None,
    ) -> None:
        super().__init__()
        if not seeds:
            raise ValueError("CopyingRuns.seeds: expected a seed for each run, got none")
        words, width, heads = options.words, options.width, options.heads
        if head_seeds is None:
            head_seeds = [[heads * seed + head for head in range(heads)] for seed in seeds]
        if len(head_seeds) != len(seeds) or any(len(item) != heads for item in head_seeds):
            raise ValueError(
                f"CopyingRuns.head_seeds: expected {heads} for each of {len(seeds)} runs, got "
                f"{[len(item) for item in head_seeds]}"
            )
        self.options = options
        generators = run_generators(seeds, _BODY)
        input_rows, output_rows = (normal_rows(generators, (count, width)) for count in (words, words + 1))
        self.encoder = StackedLSTM(input_rows, generators)
        self.decoder = StackedLSTM(output_rows, generators)
        self.hidden = StackedLinear(2 * width, width, generators)
        self.output = StackedLinear(width, words, generators)
        value_generators = run_generators([seed for item in head_seeds for seed in item], _HEADS)
        weights = uniform_rows(value_generators, (width, width), width).data
        self.attention = nn.Parameter(weights.unflatten(0, (len(seeds), heads)))

    @property
    def num_runs(self) -> int:
        """R."""
        return len(self.attention)

    def forward(self, source: Tensor, target: Tensor) -> CopyingOutput:
        """Predicts every output word from the right ones before it; returns logits, attention weights and states.

        Args:
            source: x, integers ``[R, B, L]``.
            target: y, integers ``[R, B, T]``; its last word is not read.
        """
        states, last = self.encoder(source)
        start = torch.full_like(target[..., :1], self.options.words)
        queries, _ = self.decoder(torch.cat((start, target[..., :-1]), dim=-1), last)
        weights = attention_weights(self._scores(queries, states), mode=self.options.attention)
        context = torch.matmul(weights.sum(dim=1), states)  # [R, B, T, D]
        logits = self.predict(context.flatten(1, 2), queries.flatten(1, 2))
        return CopyingOutput(logits.unflatten(1, target.shape[1:]), weights, states, queries)

    def predict(self, context: Tensor, queries: Tensor) -> Tensor:
        """N without its softmax: sums of contexts and decoder states ``[R, N, D]`` to logits ``[R, N, V]``."""
        logits: Tensor = self.output(self.hidden(torch.cat((context, queries), dim=-1)).relu())
        return logits

    def predict_one(self, run: int, context: Tensor, queries: Tensor) -> Tensor:
        """N of one run: contexts and decoder states ``[..., D]`` to logits ``[..., V]``."""
        first, last = self.hidden, self.output
        hidden = F.linear(torch.cat((context, queries), dim=-1), first.weight[run], first.bias[run]).relu()
        return F.linear(hidden, last.weight[run], last.bias[run])

    def losses(self, batch: CopyBatch) -> Tensor:
        """Cross-entropy of every run, the mean over output words, ``[R]`` (Eq. 3 over the number of words)."""
        logits = self(batch.source, batch.target).logits
        cross_entropy = F.cross_entropy(logits.flatten(0, 2), batch.target.flatten(), reduction="none")
        return cross_entropy.unflatten(0, (self.num_runs, -1)).mean(dim=-1)

    def _scores(self, queries: Tensor, states: Tensor) -> Tensor:
        """Scores of every head, ``[R, K, B, T, L]``."""
        runs, size, length = queries.shape[:3]
        if self.options.attention == "uniform":
            return queries.new_zeros(runs, self.options.heads, size, length, states.shape[2])
        projected = torch.matmul(queries.flatten(1, 2)[:, None], self.attention)  # [R, K, B T, D]
        folded = projected.unflatten(2, (size, length)).transpose(1, 2).flatten(2, 3)  # [R, B, K T, D]
        scores = torch.matmul(folded, states.mT)  # [R, B, K T, L]
        return scores.unflatten(2, (-1, length)).transpose(1, 2)
