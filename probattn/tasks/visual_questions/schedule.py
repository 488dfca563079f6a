"""The learning-rate schedule of MCAN's authors."""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True)
class EpochSchedule:
    r"""A learning rate that is constant within an epoch (Yu et al. 2019, section 4.2).

    In epoch t = 1, 2, ... it is :math:`\eta \min(t / w, 1)\, r^{n(t)}`, with n(t) the number of decays before t. With
    :math:`\eta = 10^{-4}`, w = 4, r = 1 / 5 and decays after epochs 10 and 12 that is
    :math:`\min(2.5 t \cdot 10^{-5}, 10^{-4})` and then a fifth of it every two epochs (Zhang et al. 2021, A.3).

    Attributes:
        epochs: of the run.
        warmup: w, the epoch from which the rate is full.
        decays: epochs after which it is lowered.
        factor: r.

    Example:
        >>> schedule = EpochSchedule(13, 4, (10, 12), 0.2)
        >>> [round(schedule.share(epoch), 2) for epoch in (1, 2, 4, 10, 11, 12, 13)]
        [0.25, 0.5, 1.0, 1.0, 0.2, 0.2, 0.04]
    """

    epochs: int
    warmup: int
    decays: tuple[int, ...]
    factor: float

    def share(self, epoch: int) -> float:
        """Factor of the learning rate in an epoch, from 1."""
        decays = sum(epoch > decay for decay in self.decays)
        return float(min(epoch / self.warmup, 1) * self.factor**decays)

    def __call__(self, optimizer: Optimizer, total_steps: int) -> LambdaLR:
        """The scheduler of a run of ``total_steps`` updates in all epochs."""

        def share(step: int) -> float:
            return self.share(min(step * self.epochs // total_steps, self.epochs - 1) + 1)

        return LambdaLR(optimizer, share)
