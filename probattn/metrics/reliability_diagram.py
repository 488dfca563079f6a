"""The bars of a reliability diagram, accumulated."""

from typing import Any

import matplotlib.pyplot as plt
import torch
from torchmetrics.utilities.plot import _AX_TYPE, _PLOT_OUT_TYPE

from probattn.metrics.binned import BinnedMetric
from probattn.metrics.functional.reliability_diagram import ReliabilityBins, reliability_from_sums


class ReliabilityDiagram(BinnedMetric):
    """Accuracy and mean confidence of the winning class in bins of confidence.

    See :func:`probattn.metrics.functional.reliability_diagram`.

    Args:
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        n_bins: number of bins of equal width on [0, 1].
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``inputs`` is unknown or ``n_bins`` below 1.

    Example:
        >>> import torch
        >>> metric = ReliabilityDiagram(n_bins=2)
        >>> metric.update(torch.tensor([[0.1, 0.9], [0.3, 0.7]]), torch.tensor([1, 0]))
        >>> metric.compute().accuracy
        tensor([   nan, 0.5000])
    """

    def compute(self) -> ReliabilityBins:
        """The bars of all batches and processes.

        Returns:
            Edges, counts, accuracies and confidences. torchmetrics makes a 0-d tensor of a single bin.
        """
        return reliability_from_sums(self.sums)

    def plot(self, val: ReliabilityBins | None = None, ax: _AX_TYPE | None = None) -> _PLOT_OUT_TYPE:
        """Draws the diagram with matplotlib: bars of accuracy, marks of confidence, the diagonal.

        Args:
            val: result of ``compute``; ``None`` calls it.
            ax: matplotlib axes to draw into; ``None`` makes a figure.

        Returns:
            Figure and axes.
        """
        bins = self.compute() if val is None else val
        figure, axes = plt.subplots() if ax is None else (ax.get_figure(), ax)
        edges: Any = bins.edges.cpu().numpy()
        accuracy, confidence = (
            torch.atleast_1d(bar).cpu().numpy() for bar in (bins.accuracy, bins.confidence)
        )
        axes.bar(edges[:-1], accuracy, width=edges[1:] - edges[:-1], align="edge", edgecolor="white")
        axes.plot([0, 1], [0, 1], linestyle="--", color="grey", label="calibrated")
        axes.plot(confidence, accuracy, "o", color="black", markersize=4, label="mean confidence of the bin")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
        axes.legend()
        return figure, axes
