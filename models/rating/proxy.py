"""The bag-of-words proxy as a Pyro program."""

from __future__ import annotations

from collections.abc import Mapping

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor

from probattn.probes import BagOfWordsProxy


class ProxyProgram(PyroModule):
    r"""Bags of words that predict outputs (Snell et al. 2021, Eq. 5), for the drivers that train everything else.

    .. math:: y_t \sim \mathrm{Categorical}\Bigl(\sigma\Bigl(\frac1L \sum_l W e_{x_l}\Bigr)\Bigr)

    Args:
        proxy: W and e.
        num_data: size N of the training set.

    Example:
        >>> program = ProxyProgram(BagOfWordsProxy(9, 3, 4), num_data=100)
        >>> batch = {"input_ids": torch.tensor([[4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])}
        >>> program(batch | {"labels": torch.tensor([2])}).shape
        torch.Size([1, 3])
    """

    def __init__(self, proxy: BagOfWordsProxy, num_data: int) -> None:
        super().__init__()
        self.proxy = proxy
        self.num_data = num_data

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Announces the outputs of a batch: words ``[B, T]``, -100 at padding, or classes ``[B]``.

        A batch has ``input_ids``, ``attention_mask`` and ``labels``. Returns logits ``[B, O]``.
        """
        source, labels = batch["input_ids"], batch["labels"]
        logits = self.proxy(source, batch["attention_mask"].bool())
        target = labels if labels.ndim == 2 else labels[:, None]
        rows = torch.arange(len(source), device=source.device)
        with pyro.plate("data", self.num_data, subsample=rows):
            words = dist.Categorical(logits=logits[:, None].expand(-1, target.shape[1], -1))
            pyro.sample("output", words.mask(target >= 0).to_event(1), obs=target.clamp(min=0))
        return logits

    def rate(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logarithm of the lexical probe (Eq. 6) of a batch, ``[B, T, S]``; T = 1 for classes."""
        labels = batch["labels"]
        target = (labels if labels.ndim == 2 else labels[:, None]).clamp(min=0)
        with torch.no_grad():
            return self.proxy.probe(batch["input_ids"], target, batch["attention_mask"].bool(), log=True)
