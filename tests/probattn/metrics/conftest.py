"""Every metric class with data for it and the function that gives the same value: the cases of the contract tests.

Also loaded by ``two_processes.py``, which feeds the same cases in two processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics import Metric

from probattn import metrics
from probattn.metrics import functional

NUM_DRAWS, NUM_EXAMPLES, NUM_CLASSES = 6, 157, 3
BATCH_SIZES = (40, 1, 17, 64, 35)
IGNORED = -100


@dataclass(frozen=True)
class Data:
    """Draws of logits, labels (some ignored), a mask and a domain for every example."""

    logits: Tensor
    target: Tensor
    mask: Tensor
    out_of_domain: Tensor

    def __getitem__(self, index: Any) -> "Data":
        return Data(self.logits[:, index], self.target[index], self.mask[index], self.out_of_domain[index])

    def batches(self) -> list["Data"]:
        return [self[rows] for rows in torch.arange(len(self.target)).split(BATCH_SIZES)]


@dataclass(frozen=True)
class Case:
    """A metric, which columns of the data it takes, and its value by a function of the whole data."""

    name: str
    make: Callable[..., Metric]
    second: str
    function: Callable[..., Any]
    scalar: bool = True

    def arguments(self, data: Data, inputs: str = "probabilities") -> tuple[Tensor, Tensor]:
        preds = data.logits if inputs == "logits" else data.logits.softmax(dim=-1)
        return preds, getattr(data, self.second)

    def expected(self, data: Data) -> Any:
        return self.function(*self.arguments(data))


def make_data(seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    centre = 2 * rng.normal(size=(1, NUM_EXAMPLES, NUM_CLASSES))
    logits = centre + rng.normal(size=(NUM_DRAWS, NUM_EXAMPLES, NUM_CLASSES))
    target = np.where(rng.random(NUM_EXAMPLES) < 0.6, centre[0].argmax(-1), rng.integers(0, 3, NUM_EXAMPLES))
    target[rng.random(NUM_EXAMPLES) < 0.1] = IGNORED
    return Data(
        torch.tensor(logits, dtype=torch.float32),
        torch.tensor(target),
        torch.tensor(rng.random(NUM_EXAMPLES) < 0.8),
        torch.tensor(rng.random(NUM_EXAMPLES) < 0.3),
    )


def masked_mean(measure: Callable[[Tensor], Tensor], preds: Tensor, mask: Tensor) -> Tensor:
    return measure(preds)[mask].mean()


def labelled_mean(measure: Callable[[Tensor, Tensor], Tensor], preds: Tensor, target: Tensor) -> Tensor:
    kept = target != IGNORED
    return measure(preds[:, kept], target[kept]).mean()


def between_domains(measure: Callable[..., Any], score: Any, preds: Tensor, out: Tensor) -> Any:
    return measure(score(preds[:, ~out]), score(preds[:, out]))


def cdf_curves(preds: Tensor, out: Tensor) -> functional.EntropyCDFCurves:
    grid = functional.entropy_grid(NUM_CLASSES, 21)
    entropies = functional.predictive_entropy(preds)
    inside, outside = (functional.entropy_cdf(entropies[chosen], grid) for chosen in (~out, out))
    return functional.EntropyCDFCurves(grid, inside, outside)


def selective(measure: Callable[..., Any], score: Any, preds: Tensor, target: Tensor) -> Any:
    kept = target != IGNORED
    wrong = functional.mean_probabilities(preds).argmax(-1) != target
    return measure(score(preds)[kept], wrong[kept])


def make_cases() -> list[Case]:
    ignore: dict[str, Any] = {"ignore_index": IGNORED}
    nats: dict[str, Any] = {"criterion": "mutual_information", "threshold": (0.02, 0.1), **ignore}
    strict: dict[str, Any] = {"threshold": 1e-3, **ignore}
    several: dict[str, Any] = {"threshold": (0.001, 0.05, 0.2), **ignore}
    root: dict[str, Any] = {"n_bins": 7, "norm": "l2", **ignore}
    f, m = functional, metrics
    least, mutual = f.least_confidence, f.mutual_information
    total, mutual_name = f.predictive_entropy, "mutual_information"
    rows: list[tuple[str, Callable[..., Metric], str, Callable[..., Any], bool]] = [
        (
            "ece",
            partial(m.CalibrationError, **ignore),
            "target",
            partial(f.calibration_error, **ignore),
            True,
        ),
        ("rmsce", partial(m.CalibrationError, **root), "target", partial(f.calibration_error, **root), True),
        (
            "oe",
            partial(m.OverconfidenceError, **ignore),
            "target",
            partial(f.overconfidence_error, **ignore),
            True,
        ),
        (
            "bars",
            partial(m.ReliabilityDiagram, **ignore),
            "target",
            partial(f.reliability_diagram, **ignore),
            False,
        ),
        ("total", m.PredictiveEntropy, "mask", partial(masked_mean, total), True),
        ("expected", m.ExpectedEntropy, "mask", partial(masked_mean, f.expected_entropy), True),
        ("mutual", m.MutualInformation, "mask", partial(masked_mean, mutual), True),
        (
            "nll",
            partial(m.NegativeLogLikelihood, **ignore),
            "target",
            partial(labelled_mean, f.negative_log_likelihood),
            True,
        ),
        ("brier", partial(m.BrierScore, **ignore), "target", partial(labelled_mean, f.brier_score), True),
        ("pavpu", partial(m.PAvPU, **ignore), "target", partial(f.pavpu, **ignore), True),
        ("pavpu_strict", partial(m.PAvPU, **strict), "target", partial(f.pavpu, **strict), True),
        ("pavpu_several", partial(m.PAvPU, **several), "target", partial(f.pavpu, **several), True),
        ("pavpu_nats", partial(m.PAvPU, **nats), "target", partial(f.pavpu, **nats), True),
        ("auroc", m.OODAUROC, "out_of_domain", partial(between_domains, f.ood_auroc, total), True),
        (
            "auroc_mutual",
            partial(m.OODAUROC, score=mutual_name),
            "out_of_domain",
            partial(between_domains, f.ood_auroc, mutual),
            True,
        ),
        ("fpr", m.OODFPR, "out_of_domain", partial(between_domains, f.ood_fpr, total), True),
        (
            "fpr_in",
            partial(m.OODFPR, positive="in_domain", tpr=0.8),
            "out_of_domain",
            partial(between_domains, partial(f.ood_fpr, positive="in_domain", tpr=0.8), total),
            True,
        ),
        ("cdf", partial(m.EntropyCDF, num_classes=3, n_points=21), "out_of_domain", cdf_curves, False),
        (
            "curve",
            partial(m.RiskCoverageCurve, **ignore),
            "target",
            partial(selective, f.risk_coverage_curve, least),
            False,
        ),
        (
            "aurc",
            partial(m.AreaUnderRiskCoverage, **ignore),
            "target",
            partial(selective, f.area_under_risk_coverage, least),
            True,
        ),
        (
            "aurc_mutual",
            partial(m.AreaUnderRiskCoverage, score=mutual_name, **ignore),
            "target",
            partial(selective, f.area_under_risk_coverage, mutual),
            True,
        ),
        (
            "eaurc",
            partial(m.ExcessAreaUnderRiskCoverage, **ignore),
            "target",
            partial(selective, f.excess_area_under_risk_coverage, least),
            True,
        ),
    ]
    return [Case(*row) for row in rows]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = make_cases()
        metafunc.parametrize("case", cases, ids=[case.name for case in cases])


@pytest.fixture(scope="session")
def data() -> Data:
    return make_data()
