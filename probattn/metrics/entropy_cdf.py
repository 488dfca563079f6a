"""Distribution of predictive entropies in and out of domain, accumulated."""

from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torchmetrics.utilities.plot import _AX_TYPE, _PLOT_OUT_TYPE

from probattn.metrics.base import UncertaintyMetric
from probattn.metrics.functional.entropy_cdf import EntropyCDFCurves, entropy_counts, entropy_grid
from probattn.metrics.functional.inputs import InputKind, prediction_shape
from probattn.metrics.functional.predictive_entropy import predictive_entropy
from probattn.metrics.out_of_domain import domain_of


class EntropyCDF(UncertaintyMetric):
    """Empirical distribution functions of the predictive entropy, in and out of domain, on a fixed grid.

    See :func:`probattn.metrics.functional.entropy_cdf`. The state is two counts a grid point, whatever the data.

    Args:
        num_classes: C; the grid runs from 0 to log C.
        n_points: number of grid points.
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``inputs`` is unknown, or a number is below 2.

    Example:
        >>> metric = EntropyCDF(num_classes=2, n_points=3)
        >>> metric.update(torch.tensor([[0.99, 0.01], [0.6, 0.4]]), out_of_domain=False)
        >>> metric.update(torch.tensor([[0.5, 0.5]]), out_of_domain=True)
        >>> metric.compute().in_domain, metric.compute().out_of_domain
        (tensor([0.0000, 0.5000, 1.0000]), tensor([0., 0., 1.]))
    """

    below: Tensor
    size: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        n_points: int = 101,
        inputs: InputKind = "probabilities",
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        entropy_grid(num_classes, n_points)
        super().__init__(
            inputs=inputs,
            validate_args=validate_args,
            update_options={"num_classes": num_classes, "n_points": n_points},
            **kwargs,
        )
        self.num_classes = num_classes
        self.n_points = n_points
        self._add_sum_state("below", 2, n_points, dtype=torch.int64)
        self._add_sum_state("size", 2, dtype=torch.int64)

    def update(self, preds: Tensor, out_of_domain: Tensor | bool) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, or ``[N, C]``.
            out_of_domain: bool ``[N]``, True for inputs out of domain; one bool says it of the whole batch.

        Raises:
            TypeError: ``preds`` is not floating-point or ``out_of_domain`` not bool.
            ValueError: a shape, the number of classes or a value is not as described.
        """
        _, num_classes = prediction_shape(preds)
        if num_classes != self.num_classes:
            raise ValueError(
                f"preds: expected {self.num_classes} classes, got {num_classes}: "
                f"write EntropyCDF(num_classes={num_classes})"
            )
        values = predictive_entropy(preds, inputs=self.inputs, validate_args=self.validate_args)
        out = domain_of(out_of_domain, values)
        grid = self._grid(values.device)
        below = [entropy_counts(values[chosen], grid) for chosen in (~out, out)]
        self.below = self.below + torch.stack(below)
        self.size = self.size + torch.stack([(~out).sum(), out.sum()])

    def compute(self) -> EntropyCDFCurves:
        """The curves of all batches and processes.

        Returns:
            Grid and shares in float32; NaN for a domain without any input.
        """
        inside, outside = (self.below / self.size.unsqueeze(-1)).float().unbind(0)
        return EntropyCDFCurves(self._grid(self.below.device), inside, outside)

    def plot(self, val: EntropyCDFCurves | None = None, ax: _AX_TYPE | None = None) -> _PLOT_OUT_TYPE:
        """Draws both curves with matplotlib.

        Args:
            val: result of ``compute``; ``None`` calls it.
            ax: matplotlib axes to draw into; ``None`` makes a figure.

        Returns:
            Figure and axes.
        """
        curves = self.compute() if val is None else val
        figure, axes = plt.subplots() if ax is None else (ax.get_figure(), ax)
        grid = curves.entropy.cpu().numpy()
        axes.plot(grid, curves.in_domain.cpu().numpy(), label="in domain")
        axes.plot(grid, curves.out_of_domain.cpu().numpy(), label="out of domain", linestyle="--")
        axes.set(xlabel="predictive entropy [nats]", ylabel="share of inputs", ylim=(0, 1))
        axes.legend()
        return figure, axes

    def _grid(self, device: torch.device) -> Tensor:
        return entropy_grid(self.num_classes, self.n_points).to(device)
