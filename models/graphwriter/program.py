"""GraphWriter as a Pyro program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from probattn.checks import check_number
from probattn.models.heads.sequences import Translator
from probattn.models.program import IGNORED
from probattn.sites.handlers import announce


class GraphTextProgram(Translator):
    r"""A network that writes texts about graphs, with observed texts; see :class:`probattn.models.Translator`.

    With ``coverage`` > 0 the log density has a further term, which keeps an entity from being copied again and again.
    With :math:`c_{tj}` the probability of copying entity j at place t it is, in the form of See et al. (2017, Eq. 12),

    .. math:: -\text{coverage} \sum_t \sum_j \min\Bigl(c_{tj}, \sum_{s<t} c_{sj}\Bigr)

    It is a penalty alone: no score depends on what was copied before.

    Args:
        net: whose output has log-probabilities ``[B, T, V + K]``, such as
            :class:`probattn.models.GraphWriterForGeneration`.
        num_data: N, number of training texts. Default: the batch is the data.
        mean_length: mean number of tokens of a training text, > 0, or None for nats per text.
        coverage: weight of the term, >= 0.
        label_name: key of the texts in a batch.

    Raises:
        ValueError: an argument outside its range.

    Example:
        >>> from probattn.models import GraphWriterConfig, GraphWriterForGeneration
        >>> config = GraphWriterConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> net = GraphWriterForGeneration(config)
        >>> GraphTextProgram(net).eval()(net.dry_inputs()).shape
        torch.Size([2, 5, 23])
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        num_data: int | None = None,
        mean_length: float | None = None,
        coverage: float = 0.0,
        label_name: str = "labels",
    ) -> None:
        super().__init__(net, num_data=num_data, mean_length=mean_length, label_name=label_name)
        check_number(type(self).__name__, "coverage", coverage, positive=False)
        self.coverage = coverage

    def observe(
        self, prediction: Tensor, labels: Mapping[str, Tensor] | None, inputs: Mapping[str, Tensor]
    ) -> None:
        """The site ``"target"``, one event a text, and the term of coverage where texts are observed."""
        super().observe(prediction, labels, inputs)
        if labels is None or not self.coverage:
            return
        net: Any = self.net
        copies = prediction[..., net.config.vocab_size :].exp()
        real = labels[self.label_name] != IGNORED
        announce(
            "coverage",
            lambda: -self.coverage * repeated_copies(copies, real),
            prediction.shape[:1],
            training=self.training,
            what="coverage",
        )


def repeated_copies(copies: Tensor, real: Tensor) -> Tensor:
    """How much is copied that was copied before, ``[B]``: the sum of :class:`GraphTextProgram`.

    Args:
        copies: probability of copying each entity, ``[B, T, K]``.
        real: bool ``[B, T]``, False at padding.

    Example:
        >>> once = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
        >>> repeated_copies(once, torch.ones(2, 2, dtype=torch.bool))
        tensor([0., 1.])
    """
    copies = copies * real[..., None]
    before = copies.cumsum(dim=1) - copies
    return torch.minimum(copies, before).sum(dim=(1, 2))
