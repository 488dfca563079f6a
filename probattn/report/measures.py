"""Names, formats and directions of the measures, and names of models and roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from probattn.report.record import BESIDE, MODELS, ModelKey, Role

Verdict = Literal["better", "worse", "unclear"]
"""Result of a comparison."""

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class MeasureText:
    """Texts of a measure.

    Attributes:
        title: its name.
        short: its name among numbers.
        meaning: its definition in one line.
        better: the direction of improvement.
        unit: a share is written in percent and its differences in points; a number with three decimals.
        gain: describes an improvement.
        loss: describes the opposite.
        leads: whether a reliable difference stands in the headline.
    """

    title: str
    short: str
    meaning: str
    better: Literal["higher", "lower"]
    unit: Literal["share", "number"]
    gain: str
    loss: str
    leads: bool = True

    def value(self, value: float | None) -> str:
        """A value as text; a dash where nothing was measured.

        Example:
            >>> ece, nll = CLASS_MEASURES["ece"], CLASS_MEASURES["nll"]
            >>> ece.value(0.0312), nll.value(0.4567), ece.value(None)
            ('3.1%', '0.457', '–')
        """
        if value is None:
            return "\N{EN DASH}"
        return f"{100 * value:.1f}%" if self.unit == "share" else _negative(f"{value:.3f}")

    def difference(self, value: float, *, sign: bool = True) -> str:
        """A difference as text, without unit.

        Example:
            >>> CLASS_MEASURES["ece"].difference(-0.0312), CLASS_MEASURES["nll"].difference(0.02)
            ('−3.1', '+0.020')
        """
        words = f"{100 * value:.1f}" if self.unit == "share" else f"{value:.3f}"
        if float(words) == 0:
            return words.lstrip("-")
        return _negative(f"+{words}" if sign and value > 0 else words)

    @property
    def points(self) -> str:
        """Unit of a difference, with a space before it."""
        return " points" if self.unit == "share" else ""

    def verdict(self, value: float) -> Verdict:
        """The result of a difference by its sign.

        Example:
            >>> ece, auroc = CLASS_MEASURES["ece"], CLASS_MEASURES["auroc"]
            >>> ece.verdict(-0.03), auroc.verdict(-0.03), ece.verdict(0.0)
            ('better', 'worse', 'unclear')
        """
        if value == 0:
            return "unclear"
        return "better" if (value > 0) == (self.better == "higher") else "worse"


CLASS_MEASURES: Mapping[str, MeasureText] = MappingProxyType(
    {
        "accuracy": MeasureText(
            "Accuracy",
            "accuracy",
            "Share of correct predictions",
            "higher",
            "share",
            "more accurate",
            "less accurate",
        ),
        "matthews": MeasureText(
            "Matthews correlation",
            "Matthews correlation",
            "Correlation of predicted and true classes, -1 to 1; 0 is guessing",
            "higher",
            "number",
            "better correlated with the labels",
            "worse correlated with the labels",
        ),
        "f1": MeasureText(
            "F1",
            "F1",
            "Harmonic mean of precision and recall, of the second of two classes or on average over more",
            "higher",
            "share",
            "higher F1",
            "lower F1",
            leads=False,
        ),
        "nll": MeasureText(
            "Negative log-likelihood",
            "NLL",
            "Mean negative log-probability of the true label, nats per example (NLL)",
            "lower",
            "number",
            "lower negative log-likelihood",
            "higher negative log-likelihood",
            leads=False,
        ),
        "brier": MeasureText(
            "Brier score",
            "Brier score",
            "Squared distance between the probabilities and the label's indicator, 0 to 2",
            "lower",
            "number",
            "lower Brier score",
            "higher Brier score",
            leads=False,
        ),
        "ece": MeasureText(
            "Calibration error",
            "ECE",
            "Expected distance between confidence and accuracy, over bins of the winning class's probability (ECE)",
            "lower",
            "share",
            "better calibrated",
            "worse calibrated",
        ),
        "overconfidence": MeasureText(
            "Overconfidence error",
            "OE",
            "Confidence in excess of accuracy, weighted by confidence (OE)",
            "lower",
            "share",
            "less overconfident",
            "more overconfident",
        ),
        "aurc": MeasureText(
            "Area under risk-coverage",
            "AURC",
            "Mean error when only the most confident share is answered (AURC)",
            "lower",
            "share",
            "lower area under risk-coverage",
            "higher area under risk-coverage",
            leads=False,
        ),
        "pavpu": MeasureText(
            "PAvPU",
            "PAvPU",
            "Share of predictions that are accurate and certain, or inaccurate and uncertain (p < 0.05 of Welch's "
            "t-test between the two leading classes)",
            "higher",
            "share",
            "higher PAvPU",
            "lower PAvPU",
            leads=False,
        ),
        "auroc": MeasureText(
            "OOD detection (AUROC)",
            "AUROC",
            "Probability that an input of this set has a higher entropy than an in-domain one",
            "higher",
            "number",
            "better at detecting out-of-distribution inputs",
            "worse at detecting out-of-distribution inputs",
        ),
        "fpr95": MeasureText(
            "OOD false positives (FPR95)",
            "FPR95",
            "Share of in-domain inputs flagged when 95% of this set is",
            "lower",
            "share",
            "fewer false positives in OOD detection",
            "more false positives in OOD detection",
            leads=False,
        ),
    }
)
"""Texts of the measures of classifiers, in the order of tables."""


class _Names(Mapping[ModelKey, str]):
    """Names of models: those given, or else made of their keys."""

    def __init__(self, names: Mapping[str, str], otherwise: Callable[[str], str]) -> None:
        self._names, self._otherwise = names, otherwise

    def __getitem__(self, key: ModelKey) -> str:
        return self._names.get(key) or self._otherwise(key)

    def __iter__(self) -> Iterator[ModelKey]:
        return iter(MODELS)

    def __len__(self) -> int:
        return len(MODELS)


MODEL_TITLES: Mapping[ModelKey, str] = _Names(
    {
        "variational": "Variational alignment",
        "bayesian_mean": "Bayesian, mean of draws",
        "bayesian_expectation": "Bayesian, posterior-mean weights",
        "bayesian_moments": "Bayesian, closed form",
    },
    lambda key: key.replace("_", " ").capitalize(),
)
"""Names of the models in tables."""

MODEL_STYLES: Mapping[ModelKey, str] = _Names(
    {"deterministic": "det", "bayesian_expectation": "exp", "bayesian_moments": "mom", "start": "exp"},
    lambda _: "bay",
)
"""Their classes in the style sheet."""

BESIDE_COLUMNS = tuple(
    (key, MODEL_STYLES[key], MODEL_TITLES[key].removeprefix("Bayesian, ")) for key in BESIDE
)
"""Columns of the table of comparisons behind that of draws: key, style and words."""

MODEL_LABELS: Mapping[ModelKey, str] = _Names(
    {
        "bayesian_mean": "Bayesian",
        "bayesian_expectation": "posterior mean",
        "bayesian_moments": "closed form",
        "start": "before training",
    },
    lambda key: key.replace("_", " "),
)
"""Their names beside lines and before nouns; also that of the network before its training, "start"."""

ROLE_TITLES: Mapping[Role, str] = MappingProxyType(
    {"in_domain": "in domain", "shifted": "shifted", "out_of_domain": "OOD"}
)
"""Names of the roles of data sets."""

ROLE_STYLES: Mapping[Role, str] = MappingProxyType(
    {"in_domain": "in", "shifted": "shift", "out_of_domain": "out"}
)
"""Their classes in the style sheet."""


def _negative(words: str) -> str:
    return words.replace("-", MINUS, 1)


def listed(items: list[str]) -> str:
    """Words as an enumeration."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def within(title: str) -> str:
    """A title as it stands within a sentence: "Exact match" is "exact match", "F1 of words" stays."""
    return title[:1].lower() + title[1:] if title[1:2].islower() else title


def capital(words: str) -> str:
    """Words that begin a sentence."""
    return words[:1].upper() + words[1:]
