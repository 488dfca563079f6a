"""Measures of uncertainty as torchmetrics classes; :mod:`probattn.metrics.functional` holds the functions.

``update(preds, target)`` adds a batch with integer labels ``[N]``; the mean entropies and the mutual information have
``update(preds, mask=None)``, out-of-domain metrics ``update(preds, out_of_domain)``, each a bool ``[N]``. ``preds`` are
``[N, C]`` for N examples and C classes, or P posterior draws ``[P, N, C]``. The options are those of the function that
each metric names, and torchmetrics' (``**kwargs``); one that is unknown or out of range raises ``ValueError`` when the
metric is made. ``inputs`` declares predictions as ``"probabilities"`` or ``"logits"``; ``validate_args=False`` skips
the checks of each batch's values, which synchronise with the device. The value of a metric does not depend on how the
data are divided into batches or processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probattn.checks import imported_when_used

if TYPE_CHECKING:
    from probattn.metrics.base import (
        BrierScore,
        ExpectedEntropy,
        MutualInformation,
        NegativeLogLikelihood,
        PredictiveEntropy,
    )
    from probattn.metrics.domain import OODAUROC, OODFPR, EntropyCDF
    from probattn.metrics.labelled import (
        AreaUnderRiskCoverage,
        CalibrationError,
        ExcessAreaUnderRiskCoverage,
        OverconfidenceError,
        PAvPU,
        ReliabilityDiagram,
        RiskCoverageCurve,
    )

__all__ = ["AreaUnderRiskCoverage", "BrierScore", "CalibrationError", "EntropyCDF"]
__all__ += ["ExcessAreaUnderRiskCoverage", "ExpectedEntropy", "MutualInformation"]
__all__ += ["NegativeLogLikelihood", "OODAUROC", "OODFPR", "OverconfidenceError", "PAvPU"]
__all__ += ["PredictiveEntropy", "ReliabilityDiagram", "RiskCoverageCurve"]

# Imports the classes when one is used first: torchmetrics takes most of a second, and the functions need none.
__getattr__ = imported_when_used(__name__, __all__, ("base", "domain", "labelled"), ())


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
