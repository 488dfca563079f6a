"""Metrics of uncertainty in and out of domain."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from probattn.metrics import functional
from probattn.metrics.base import ScoredExamples, UncertaintyMetric
from probattn.metrics.functional import EntropyCDFCurves, PositiveDomain, UncertaintyKind
from probattn.metrics.functional.domain import check_fpr_options
from probattn.metrics.functional.inputs import example_mask, prediction_shape


class DomainMetric(UncertaintyMetric):
    """A metric of uncertainties ``[N]`` of inputs in and out of domain."""

    _values: Callable[[Tensor], Tensor]
    _add: Callable[[Tensor, Tensor], None]

    def update(self, preds: Tensor, out_of_domain: Tensor | bool) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, or ``[N, C]``.
            out_of_domain: bool ``[N]``, True for inputs out of domain; one bool for the whole batch.

        Raises:
            TypeError: ``preds`` is not floating-point or ``out_of_domain`` not bool.
            ValueError: a shape, the number of classes or a value is not as described.
        """
        values = self._values(preds)
        if isinstance(out_of_domain, bool):
            out = torch.full_like(values, out_of_domain, dtype=torch.bool)
        else:
            out = example_mask(out_of_domain, len(values), values.device, name="out_of_domain")
        self._add(values, out)


class OutOfDomainMetric(DomainMetric, ScoredExamples):
    """Stores the uncertainty and the domain of every input; such metrics in one collection share this state."""

    __jit_unused_properties__: ClassVar[list[str]] = [*ScoredExamples.__jit_unused_properties__, "domains"]

    def __init__(self, *, score: UncertaintyKind = "predictive_entropy", **kwargs: Any) -> None:
        super().__init__(score=score, **kwargs)

    def _values(self, preds: Tensor) -> Tensor:
        return functional.uncertainty(preds, self.score_kind, **self._checks)

    def _add(self, values: Tensor, out: Tensor) -> None:
        self._keep(values, out)

    @property
    def domains(self) -> tuple[Tensor, Tensor]:
        """Scores in domain [N] and out of domain [M]."""
        scores, out = self._scores_and_companions()
        return scores[out == 0], scores[out != 0]


class OODAUROC(OutOfDomainMetric):
    """Area under the ROC curve of detecting out-of-domain inputs by their uncertainty; higher is better.

    The area is that of :func:`probattn.metrics.functional.ood_auroc`. :func:`probattn.metrics.functional.uncertainty`
    computes the uncertainties; ``score`` is its argument ``kind``.

    Example:
        >>> import torch
        >>> metric = OODAUROC()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), out_of_domain=False)
        >>> metric.update(torch.tensor([[0.5, 0.5], [0.7, 0.3]]), out_of_domain=True)
        >>> metric.compute()
        tensor(0.7500)
    """

    higher_is_better: bool = True
    plot_upper_bound: float = 1.0

    def compute(self) -> Tensor:
        """AUROC over all batches and processes: 0-d float32 in [0, 1]; NaN if either domain has no input."""
        return functional.ood_auroc(*self.domains)


class OODFPR(OutOfDomainMetric):
    """False positive rate at the threshold that detects a share ``tpr`` of the positives (FPR95); lower is better.

    Options as for :func:`probattn.metrics.functional.ood_fpr` and, for ``score``, as for :class:`OODAUROC`.

    Example:
        >>> import torch
        >>> metric = OODFPR()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), out_of_domain=False)
        >>> metric.update(torch.tensor([[0.5, 0.5], [0.7, 0.3]]), out_of_domain=True)
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better: bool = False
    plot_upper_bound: float = 1.0

    def __init__(
        self, *, tpr: float = 0.95, positive: PositiveDomain = "out_of_domain", **kwargs: Any
    ) -> None:
        check_fpr_options(tpr, positive)
        super().__init__(**kwargs)
        self.tpr = tpr
        self.positive: PositiveDomain = positive

    def compute(self) -> Tensor:
        """False positive rate of all batches and processes: 0-d float32 in [0, 1]; NaN while either domain is empty."""
        return functional.ood_fpr(*self.domains, tpr=self.tpr, positive=self.positive)


class EntropyCDF(DomainMetric):
    """Empirical distribution functions of the predictive entropy, in and out of domain, on a fixed grid.

    The curves are :func:`probattn.metrics.functional.entropy_cdf` of the values of
    :func:`probattn.metrics.functional.predictive_entropy`, whose options the metric takes, on the grid of
    :func:`probattn.metrics.functional.entropy_grid`. The state has two counts per grid point.

    Args:
        num_classes: C, at least 2; the grid runs from 0 to log C.
        n_points: number of grid points, at least 2.

    Example:
        >>> metric = EntropyCDF(num_classes=2, n_points=3)
        >>> metric.update(torch.tensor([[0.99, 0.01], [0.6, 0.4]]), out_of_domain=False)
        >>> metric.update(torch.tensor([[0.5, 0.5]]), out_of_domain=True)
        >>> metric.compute().in_domain, metric.compute().out_of_domain
        (tensor([0.0000, 0.5000, 1.0000]), tensor([0., 0., 1.]))
    """

    below: Tensor
    size: Tensor

    def __init__(self, *, num_classes: int, n_points: int = 101, **kwargs: Any) -> None:
        functional.entropy_grid(num_classes, n_points)
        super().__init__(update_options={"num_classes": num_classes, "n_points": n_points}, **kwargs)
        self.num_classes = num_classes
        self.n_points = n_points
        self._add_sum_state("below", 2, n_points, dtype=torch.int64)
        self._add_sum_state("size", 2, dtype=torch.int64)

    def _values(self, preds: Tensor) -> Tensor:
        _, num_classes = prediction_shape(preds)
        if num_classes != self.num_classes:
            raise ValueError(
                f"preds: expected {self.num_classes} classes, got {num_classes}: "
                f"write EntropyCDF(num_classes={num_classes})"
            )
        return functional.predictive_entropy(preds, **self._checks)

    def _add(self, values: Tensor, out: Tensor) -> None:
        grid = self._grid(values.device)
        below = [functional.entropy_counts(values[domain], grid) for domain in (~out, out)]
        self.below = self.below + torch.stack(below)
        self.size = self.size + torch.stack([(~out).sum(), out.sum()])

    def compute(self) -> EntropyCDFCurves:
        """The curves over all batches and processes: grid and shares in float32; NaN for a domain without any input."""
        inside, outside = (self.below / self.size.unsqueeze(-1)).float().unbind(0)
        return EntropyCDFCurves(self._grid(self.below.device), inside, outside)

    def _draw(self, axes: Any, value: EntropyCDFCurves) -> None:
        grid = value.entropy.cpu().numpy()
        axes.plot(grid, value.in_domain.cpu().numpy(), label="in domain")
        axes.plot(grid, value.out_of_domain.cpu().numpy(), label="out of domain", linestyle="--")
        axes.set(xlabel="predictive entropy [nats]", ylabel="share of inputs", ylim=(0, 1))
        axes.legend()

    def _grid(self, device: torch.device) -> Tensor:
        return functional.entropy_grid(self.num_classes, self.n_points).to(device)
