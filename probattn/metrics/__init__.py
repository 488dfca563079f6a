"""Measures of uncertainty as torchmetrics classes; :mod:`probattn.metrics.functional` holds the functions.

Every metric takes class predictions ``[N, C]``, or draws ``[P, N, C]`` from a posterior. Its options are those of the
function that its documentation names, and torchmetrics' (``**kwargs``); an option that is unknown or out of range
raises ``ValueError`` when the metric is made. ``inputs`` declares predictions as ``"probabilities"`` or ``"logits"``;
``validate_args=False`` leaves out the checks of the values of every batch, which wait for the device. A value is the
same whether the data came at once, in batches, or spread over processes.
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
