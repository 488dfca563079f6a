"""The models of Snell et al. 2021 for copying and for the keyword task, many runs as one batched program."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.models.copying.tasks import CopyBatch, KeywordBatch
from probattn.options import Count, Options
from probattn.probes import AttentionMode, attention_weights
from probattn.sites.noise import seed_integers


def run_generators(seeds: Sequence[int], stream: int) -> list[torch.Generator]:
    """A generator for each run; equal seeds with other streams are independent of each other."""
    states = (np.random.SeedSequence(seed_integers((seed, stream))).generate_state(1) for seed in seeds)
    return [torch.Generator().manual_seed(int(state[0])) for state in states]


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


class StackedRecurrent(nn.Module, ABC):
    """R recurrent layers over words after embeddings ``[R, V, D]``, which layers may share."""

    gates: int
    """Gates and candidates, of which each has D of the rows of a weight."""

    def __init__(self, embedding: nn.Parameter, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        width = embedding.shape[-1]
        rows = self.gates * width
        self.embedding = embedding
        self.weight_input = uniform_rows(generators, (rows, width), width)
        self.weight_hidden = uniform_rows(generators, (rows, width), width)
        self.bias_input = uniform_rows(generators, (rows,), width)
        self.bias_hidden = uniform_rows(generators, (rows,), width)

    def forward(
        self, words: Tensor, state: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Hidden states ``[R, B, L, D]`` of words ``[R, B, L]``, and the last state, ``[R, B, D]`` each."""
        runs, size, _ = words.shape
        types = self.embedding.shape[1]
        minimum, maximum = torch.stack(words.aminmax()).tolist() if words.numel() else (0, 0)
        if minimum < 0 or maximum >= types:
            # the tables of all runs are one below the other: such a word would be one of another run
            raise IndexError(
                f"{type(self).__name__}: expected words in 0 .. {types - 1}, got {minimum} .. {maximum}"
            )
        width = self.embedding.shape[-1]
        carried = state or (self.embedding.new_zeros(runs, size, width),) * 2
        states = []
        for gates in self._inputs(words).unbind(0):  # [R, B, rows] each
            carried = self._step(gates, carried)
            states.append(carried[0])
        return torch.stack(states, dim=2), carried

    @abstractmethod
    def _step(self, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The next state, of which the first tensor is the hidden one."""

    def _bias(self) -> Tensor:
        """What is added to the gates once a word, ``[R, rows]``."""
        return self.bias_input

    def _inputs(self, words: Tensor) -> Tensor:
        """Contribution of the words to the gates, ``[L, R, B, rows]``, made once for the whole vocabulary."""
        table = torch.baddbmm(self._bias()[:, None], self.embedding, self.weight_input.mT)  # [R, V, rows]
        first = torch.arange(len(words), device=words.device)[:, None, None] * self.embedding.shape[1]
        return nn.functional.embedding((words + first).permute(2, 0, 1), table.flatten(0, 1))


class StackedLSTM(StackedRecurrent):
    """R ``nn.LSTM`` layers; the state is hidden and cell state."""

    gates = 4

    def _step(self, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, cell = state
        width = hidden.shape[-1]
        z = torch.baddbmm(gates, hidden, self.weight_hidden.mT)
        keep, new, out = z[..., : 2 * width].sigmoid(), z[..., 2 * width : 3 * width], z[..., 3 * width :]
        add, forget = keep.chunk(2, dim=-1)
        cell = torch.addcmul(forget * cell, add, new.tanh())
        return out.sigmoid() * cell.tanh(), cell

    def _bias(self) -> Tensor:
        return self.bias_input + self.bias_hidden


class StackedGRU(StackedRecurrent):
    """R ``nn.GRU`` layers; the state is the hidden state."""

    gates = 3

    def _step(self, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = state[0]
        width = hidden.shape[-1]
        z = torch.baddbmm(self.bias_hidden[:, None], hidden, self.weight_hidden.mT)
        reset, update = (gates[..., : 2 * width] + z[..., : 2 * width]).sigmoid().chunk(2, dim=-1)
        new = torch.addcmul(gates[..., 2 * width :], reset, z[..., 2 * width :]).tanh()
        return (torch.lerp(new, hidden, update),)


_BODY, _HEADS = 0, 1
"""Random streams of initial values: heads can be drawn again while everything else stays."""


@dataclass(frozen=True)
class CopyingOptions(Options):
    """Sizes of the copying model :class:`CopyingRuns`.

    Args:
        words: number V of words in the vocabulary of input and output.
        width: size D of embeddings, states and the hidden layer; 256 in the paper.
        heads: number K of attention heads, >= 1.
        attention: "learned", or "uniform": weight 1 / L at every position.
        form: "paper", or "release", the model of the authors' code, see :class:`CopyingRuns`.

    Raises:
        ValueError: an option out of its range.
    """

    words: Count
    width: Count = 256
    heads: Count = 1
    attention: AttentionMode = "learned"
    form: Literal["paper", "release"] = "paper"


class CopyingOutput(NamedTuple):
    """Output of :class:`CopyingRuns` for a batch.

    Attributes:
        logits: logits of the output words, ``[R, B, T, V]``.
        weights: attention weights, ``[R, K, B, T, L]``.
        states: encoder states h, ``[R, B, L, D]``.
        queries: decoder states s, ``[R, B, T, D]``.
    """

    logits: Tensor
    weights: Tensor
    states: Tensor
    queries: Tensor


class CopyingRuns(nn.Module):
    r"""R independent runs of an LSTM encoder-decoder with dot attention, in one module.

    A unidirectional LSTM layer reads the input; a second one, which starts from the last state of the first, reads the
    previous output words. With the states h of the first and s of the second,

    .. math:: a^{(k)}_{t,l} = s_t^T W^{(k)} h_l, \quad \alpha^{(k)}_t = \mathrm{softmax}(a^{(k)}_t), \quad
        p_t = N\Bigl(\Bigl[\sum_k \sum_l \alpha^{(k)}_{t,l} h_l,\; s_t\Bigr]\Bigr)

    (Snell et al. 2021, Eq. 1, 2, 20, 21). N has one hidden ReLU layer and a softmax; contexts are not fed back into the
    decoder. The decoder reads the right words before t (teacher forcing), for t = 1 a special start word.

    With ``form="release"`` the model is that of the authors' code (SequenceCopying/multihead.py): GRUs, tanh instead of
    ReLU, a bias :math:`b^{(k)}` added to :math:`s_t^T W^{(k)}`, and the context
    :math:`\frac1K \sum_k (V^{(k)} \sum_l \alpha^{(k)}_{t,l} h_l + c^{(k)})`.

    All parameters have a leading dimension of runs, and runs do not interact. Minimising the sum of the runs' losses
    with an element-wise optimiser, such as Adam, therefore trains R separate models.

    Args:
        options: sizes and attention.
        seeds: seeds of the initial values, one for each run.
        head_seeds: K seeds for each of the R runs, for the parameters of the heads (the attributes below), which are
            then drawn independently of all other parameters. Default: derived from ``seeds``.

    Attributes:
        attention: the matrices W of the heads, ``[R, K, D, D]``.
        attention_bias: the biases b, ``[R, K, D]``, with ``form="release"``; else None.
        value: the matrices :math:`V^{(k)}`, ``[R, K, D, D]``, with ``form="release"``; else None.
        value_bias: the biases c, ``[R, K, D]``, with ``form="release"``; else None.

    Raises:
        ValueError: no seed, or ``head_seeds`` that are not K for each run.

    Example:
        >>> model = CopyingRuns(CopyingOptions(words=6, width=8), seeds=[0, 1, 2])
        >>> source = torch.randint(6, (3, 4, 5))
        >>> output = model(source, source)
        >>> output.logits.shape, output.weights.shape
        (torch.Size([3, 4, 5, 6]), torch.Size([3, 1, 4, 5, 5]))
    """

    def __init__(
        self, options: CopyingOptions, seeds: Sequence[int], head_seeds: Sequence[Sequence[int]] | None = None
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
        layer: type[StackedRecurrent] = StackedGRU if options.form == "release" else StackedLSTM
        self.encoder = layer(input_rows, generators)
        self.decoder = layer(output_rows, generators)
        self.hidden = StackedLinear(2 * width, width, generators)
        self.output = StackedLinear(width, words, generators)
        value_generators = run_generators([seed for item in head_seeds for seed in item], _HEADS)

        def drawn(*shape: int) -> nn.Parameter:
            rows = uniform_rows(value_generators, shape, width).data
            return nn.Parameter(rows.unflatten(0, (len(seeds), heads)))

        self.attention = drawn(width, width)
        release = options.form == "release"
        self.attention_bias = drawn(width) if release else None
        self.value = drawn(width, width) if release else None
        self.value_bias = drawn(width) if release else None

    @property
    def num_runs(self) -> int:
        """Number R of runs."""
        return len(self.attention)

    def forward(self, source: Tensor, target: Tensor) -> CopyingOutput:
        """Predicts every output word given the right words before it.

        Args:
            source: input words x, integers ``[R, B, L]``.
            target: right output words y, integers ``[R, B, T]``; the last word has no effect.
        """
        states, last = self.encoder(source)
        start = torch.full_like(target[..., :1], self.options.words)
        queries, _ = self.decoder(torch.cat((start, target[..., :-1]), dim=-1), last)
        weights = attention_weights(self._scores(queries, states), mode=self.options.attention)
        if self.options.form == "release":
            contexts = torch.matmul(weights, states[:, None])  # [R, K, B, T, D]
            context = self._averaged(contexts.flatten(2, 3)).unflatten(1, weights.shape[2:4])
        else:
            context = torch.matmul(weights.sum(dim=1), states)  # [R, B, T, D]
        logits = self.predict(context.flatten(1, 2), queries.flatten(1, 2))
        return CopyingOutput(logits.unflatten(1, target.shape[1:]), weights, states, queries)

    def context_at(self, states: Tensor) -> Tensor:
        """Computes the context for each position as if all heads attended to it alone, from and to ``[R, B, L, D]``."""
        if self.options.form == "paper":
            return self.options.heads * states
        return self._averaged(states.flatten(1, 2)[:, None]).unflatten(1, states.shape[1:3])

    def _averaged(self, contexts: Tensor) -> Tensor:
        """The mean over heads of the maps V of contexts ``[R, K, N, D]``, or of the same ``[R, 1, N, D]``."""
        assert self.value is not None
        assert self.value_bias is not None
        mapped = torch.matmul(contexts, self.value.mT) + self.value_bias[:, :, None]
        return mapped.mean(dim=1)

    def predict(self, context: Tensor, queries: Tensor) -> Tensor:
        """Logits ``[R, M, V]`` of N for M contexts and decoder states (``queries``) of each run, ``[R, M, D]`` both."""
        return self.output(self._activation(self.hidden(torch.cat((context, queries), dim=-1))))

    def predict_one(self, run: int, context: Tensor, queries: Tensor) -> Tensor:
        """Logits ``[..., V]`` of N of one run, for contexts and decoder states (``queries``), ``[..., D]`` both."""
        first, last = self.hidden, self.output
        hidden = F.linear(torch.cat((context, queries), dim=-1), first.weight[run], first.bias[run])
        return F.linear(self._activation(hidden), last.weight[run], last.bias[run])

    def _activation(self, hidden: Tensor) -> Tensor:
        return hidden.tanh() if self.options.form == "release" else hidden.relu()

    def losses(self, batch: CopyBatch) -> Tensor:
        """Computes the cross-entropy of every run, ``[R]``, as a mean over output words (Eq. 3 has their sum)."""
        logits = self(batch.source, batch.target).logits
        cross_entropy = F.cross_entropy(logits.flatten(0, 2), batch.target.flatten(), reduction="none")
        return cross_entropy.unflatten(0, (self.num_runs, -1)).mean(dim=-1)

    def _scores(self, queries: Tensor, states: Tensor) -> Tensor:
        """Scores of every head, ``[R, K, B, T, L]``."""
        runs, size, length = queries.shape[:3]
        if self.options.attention == "uniform":
            return queries.new_zeros(runs, self.options.heads, size, length, states.shape[2])
        projected = torch.matmul(queries.flatten(1, 2)[:, None], self.attention)  # [R, K, B T, D]
        if self.attention_bias is not None:
            projected = projected + self.attention_bias[:, :, None]
        folded = projected.unflatten(2, (size, length)).transpose(1, 2).flatten(2, 3)  # [R, B, K T, D]
        scores = torch.matmul(folded, states.mT)  # [R, B, K T, L]
        return scores.unflatten(2, (-1, length)).transpose(1, 2)


class KeywordOutput(NamedTuple):
    """Output of :class:`KeywordRuns` for a batch.

    Attributes:
        logits: log-odds of the positive class under uniform attention, ``[R, B]``.
        log_odds: log-odds of the positive class if attention were only on one position l, ``[R, B, L]``.
    """

    logits: Tensor
    log_odds: Tensor


class KeywordRuns(nn.Module):
    r"""R independent runs of an LSTM classifier with uniform attention, in one module.

    .. math:: \gamma_l = w^T h_l, \qquad p = \sigma\Bigl(\frac1L \sum_l \gamma_l\Bigr)

    (Snell et al. 2021, Eq. 8 and 22), with LSTM states h and the probability p of the positive class. Since the
    classifier is linear, the mean of the log-odds :math:`\gamma_l` equals the log-odds of the mean state.
    :math:`\sigma(\gamma_l)` is the lexical probe.

    Args:
        words: number V of words in the vocabulary.
        width: size D of embeddings and of the states in each direction.
        seeds: seeds of the initial values, one for each run.
        bidirectional: whether a second LSTM reads from the end; the paper does not say whether section 6.1 has it.

    Raises:
        ValueError: no seed.

    Example:
        >>> model = KeywordRuns(10, 4, seeds=[0, 1])
        >>> output = model(torch.zeros(2, 3, 6).long())
        >>> output.logits.shape, output.log_odds.shape
        (torch.Size([2, 3]), torch.Size([2, 3, 6]))
    """

    def __init__(self, words: int, width: int, seeds: Sequence[int], *, bidirectional: bool = False) -> None:
        super().__init__()
        if not seeds:
            raise ValueError("KeywordRuns.seeds: expected a seed for each run, got none")
        generators = run_generators(seeds, 0)
        embedding = normal_rows(generators, (words, width))
        self.forwards = StackedLSTM(embedding, generators)
        self.backwards = StackedLSTM(embedding, generators) if bidirectional else None
        features = 2 * width if bidirectional else width
        self.head = uniform_rows(generators, (features,), features)

    @property
    def num_runs(self) -> int:
        """Number R of runs."""
        return len(self.head)

    def forward(self, words: Tensor) -> KeywordOutput:
        """Classifies sentences, integers ``[R, B, L]``."""
        states, _ = self.forwards(words)
        if self.backwards is not None:
            reverse, _ = self.backwards(words.flip(-1))
            states = torch.cat((states, reverse.flip(2)), dim=-1)  # [R, B, L, 2D]
        log_odds = torch.matmul(states, self.head[:, None, :, None]).squeeze(-1)
        return KeywordOutput(log_odds.mean(dim=-1), log_odds)

    def losses(self, batch: KeywordBatch) -> Tensor:
        """Computes the binary cross-entropy of every run, mean over sentences, ``[R]``."""
        logits = self(batch.words).logits
        labels = batch.labels.to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=-1)
