"""AUROC of out-of-domain detection, accumulated."""

from torch import Tensor

from probattn.metrics.functional.ood_auroc import ood_auroc
from probattn.metrics.out_of_domain import OutOfDomainMetric


class OODAUROC(OutOfDomainMetric):
    """Area under the ROC curve of detecting out-of-domain inputs by their uncertainty; higher is better.

    See :func:`probattn.metrics.functional.ood_auroc`.

    Args:
        score: uncertainty that serves as the score: ``"predictive_entropy"``, ``"least_confidence"``,
            ``"expected_entropy"`` or ``"mutual_information"``.
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``score`` or ``inputs`` is unknown.

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
        """AUROC of all batches and processes.

        Returns:
            0-d float32 in [0, 1]; NaN while either domain is empty.
        """
        return ood_auroc(*self.domains)
