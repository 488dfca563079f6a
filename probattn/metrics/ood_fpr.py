"""False alarms of out-of-domain detection, accumulated."""

from typing import Any

from torch import Tensor

from probattn.metrics.functional.inputs import InputKind
from probattn.metrics.functional.ood_fpr import PositiveDomain, check_fpr_options, ood_fpr
from probattn.metrics.functional.uncertainty import UncertaintyKind
from probattn.metrics.out_of_domain import OutOfDomainMetric


class OODFPR(OutOfDomainMetric):
    """False positive rate where ``tpr`` of the positives are found (FPR95); lower is better.

    See :func:`probattn.metrics.functional.ood_fpr`.

    Args:
        tpr: rate of positives to be found, in (0, 1].
        positive: which domain is the positive one, ``"out_of_domain"`` or ``"in_domain"``.
        score: uncertainty that serves as the score: ``"predictive_entropy"``, ``"least_confidence"``,
            ``"expected_entropy"`` or ``"mutual_information"``.
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: an option is unknown or out of range.

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
        self,
        *,
        tpr: float = 0.95,
        positive: PositiveDomain = "out_of_domain",
        score: UncertaintyKind = "predictive_entropy",
        inputs: InputKind = "probabilities",
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        check_fpr_options(tpr, positive)
        super().__init__(score=score, inputs=inputs, validate_args=validate_args, **kwargs)
        self.tpr = tpr
        self.positive: PositiveDomain = positive

    def compute(self) -> Tensor:
        """False positive rate of all batches and processes.

        Returns:
            0-d float32 in [0, 1]; NaN while either domain is empty.
        """
        return ood_fpr(*self.domains, tpr=self.tpr, positive=self.positive)
