"""Measures of uncertainty as torchmetrics classes; :mod:`probattn.metrics.functional` holds the functions.

Every metric takes class predictions ``[N, C]``, or draws ``[P, N, C]`` from a posterior. Its options are those of the
function that its documentation names, and torchmetrics' (``**kwargs``); an option that is unknown or out of range
raises ``ValueError`` when the metric is made. ``inputs`` declares predictions as ``"probabilities"`` or ``"logits"``;
``validate_args=False`` leaves out the checks of the values of every batch, which wait for the device. A value is the
same whether the data came at once, in batches, or spread over processes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probattn.metrics.base import (
        BrierScore,
        ExpectedEntropy,
        MutualInformation,
        NegativeLogLikelihood,
        PredictiveEntropy,
    )
    from probattn.metrics.calibration import CalibrationError, OverconfidenceError, ReliabilityDiagram
    from probattn.metrics.domain import OODAUROC, OODFPR, EntropyCDF
    from probattn.metrics.selective import (
        AreaUnderRiskCoverage,
        ExcessAreaUnderRiskCoverage,
        PAvPU,
        RiskCoverageCurve,
    )

__all__ = [
    "AreaUnderRiskCoverage",
    "BrierScore",
    "CalibrationError",
    "EntropyCDF",
    "ExcessAreaUnderRiskCoverage",
    "ExpectedEntropy",
    "MutualInformation",
    "NegativeLogLikelihood",
    "OODAUROC",
    "OODFPR",
    "OverconfidenceError",
    "PAvPU",
    "PredictiveEntropy",
    "ReliabilityDiagram",
    "RiskCoverageCurve",
]

_MODULES = ("base", "calibration", "domain", "selective")


def __getattr__(name: str) -> Any:
    """Imports the classes when one is used first: torchmetrics takes most of a second, and the functions need none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in _MODULES:
        names = vars(import_module(f"{__name__}.{module}"))
        globals().update({item: names[item] for item in __all__ if item in names})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
