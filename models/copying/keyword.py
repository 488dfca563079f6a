"""The classifier of the keyword task under uniform attention, many runs as one batched program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.models.copying.stacked import StackedLSTM, normal_rows, run_generators, uniform_rows
from probattn.models.copying.tasks import KeywordBatch


class KeywordOutput(NamedTuple):
    """Output of the classifier for a batch.

    Attributes:
        logits: log-odds of the positive class under uniform attention, ``[R, B]``.
        log_odds: those if it attended to one position alone, ``[R, B, L]``.
    """

    logits: Tensor
    log_odds: Tensor


class KeywordRuns(nn.Module):
    r"""R runs of an LSTM classifier that is trained under uniform attention, as one program.

    .. math:: \gamma_l = w^T h_l, \qquad p = \sigma\Bigl(\frac1L \sum_l \gamma_l\Bigr)

    (Snell et al. 2021, Eq. 8 and 22): the mean of the log-odds is that of the mean state, since the head is linear.
    :math:`\gamma_l` is the lexical probe before its sigmoid.

    Args:
        words: V.
        width: D, of embeddings and of a direction's states.
        seeds: of the initial values, one a run.
        bidirectional: whether a second LSTM reads the sentences from their ends, as the paper's classifiers do. The
            paper does not say which of the two section 6.1 has.

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
        """R."""
        return len(self.head)

    def forward(self, words: Tensor) -> KeywordOutput:
        """Reads sentences, integers ``[R, B, L]``."""
        states, _ = self.forwards(words)
        if self.backwards is not None:
            reverse, _ = self.backwards(words.flip(-1))
            states = torch.cat((states, reverse.flip(2)), dim=-1)  # [R, B, L, 2D]
        log_odds = torch.matmul(states, self.head[:, None, :, None]).squeeze(-1)
        return KeywordOutput(log_odds.mean(dim=-1), log_odds)

    def losses(self, batch: KeywordBatch) -> Tensor:
        """Cross-entropy of every run, the mean over sentences, ``[R]``."""
        logits = self(batch.words).logits
        return F.binary_cross_entropy_with_logits(
            logits, batch.labels.to(logits.dtype), reduction="none"
        ).mean(dim=-1)
