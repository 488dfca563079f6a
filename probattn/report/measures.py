"""Names, formats and directions of the measures, and names of models and roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from probattn.report.record import BESIDE, ModelKey, Role

Verdict = Literal["better", "worse", "unclear"]
"""Result of a comparison with the baseline; "unclear" if the difference is not significant."""

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class MeasureText:
    """Name, definition and format of a measure.

    Attributes:
        title: name of the measure.
        short: short name, used next to numbers.
        meaning: definition in one line.
        better: whether higher or lower values are better.
        unit: a share is written in percent and its differences in points; a number with three decimals.
        gain: words for an improvement.
        loss: words for the opposite.
        leads: whether a significant difference may appear in the headline.
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
        """A value as text; a dash for None.

        Example:
            >>> ece, nll = CLASS_MEASURES["ece"], CLASS_MEASURES["nll"]
            >>> ece.value(0.0312), nll.value(0.4567), ece.value(None)
            ('3.1%', '0.457', '–')
        """
        if value is None:
            return "\N{EN DASH}"
        return f"{100 * value:.1f}%" if self.unit == "share" else signed(f"{value:.3f}")

    def difference(self, value: float, *, sign: bool = True) -> str:
        """A difference as text, without unit.

        Example:
            >>> CLASS_MEASURES["ece"].difference(-0.0312), CLASS_MEASURES["nll"].difference(0.02)
            ('−3.1', '+0.020')
        """
        words = f"{100 * value:.1f}" if self.unit == "share" else f"{value:.3f}"
        if float(words) == 0:
            return words.lstrip("-")
        return signed(f"+{words}" if sign and value > 0 else words)

    @property
    def points(self) -> str:
        """Unit of a difference, with a space before it."""
        return " points" if self.unit == "share" else ""

    def verdict(self, value: float) -> Verdict:
        """The verdict by the sign of a difference, whether or not it is significant.

        Example:
            >>> ece, auroc = CLASS_MEASURES["ece"], CLASS_MEASURES["auroc"]
            >>> ece.verdict(-0.03), auroc.verdict(-0.03), ece.verdict(0.0)
            ('better', 'worse', 'unclear')
        """
        if value == 0:
            return "unclear"
        return "better" if (value > 0) == (self.better == "higher") else "worse"


PROPER = ("Pearson", "Spearman", "Brier", "Hamming")
"""Names of people, with which a measure may begin."""


def share(
    title: str,
    meaning: str,
    *,
    short: str = "",
    better: bool = True,
    words: tuple[str, str] | None = None,
    leads: bool = True,
    unit: Literal["share", "number"] = "share",
) -> MeasureText:
    """A measure that is a share; ``better`` if higher is better; ``words`` describe an improvement and the opposite."""
    name = short or title
    lower = name if name[:2].isupper() or name.startswith(PROPER) else name[:1].lower() + name[1:]
    higher_lower = (f"higher {lower}", f"lower {lower}")
    gain, loss = words or (higher_lower if better else higher_lower[::-1])
    return MeasureText(title, name, meaning, "higher" if better else "lower", unit, gain, loss, leads)


def number(title: str, meaning: str, *, better: bool = False, **texts: Any) -> MeasureText:
    """A measure that is another number, likewise."""
    return share(title, meaning, better=better, unit="number", **texts)


CLASS_MEASURES: Mapping[str, MeasureText] = MappingProxyType(
    {
        "accuracy": share(
            "Accuracy",
            "Share of correct predictions",
            short="accuracy",
            words=("more accurate", "less accurate"),
        ),
        "matthews": number(
            "Matthews correlation",
            "Correlation of predicted and true classes, -1 to 1; 0 is guessing",
            better=True,
            words=("better correlated with the labels", "worse correlated with the labels"),
        ),
        "f1": share(
            "F1",
            "Harmonic mean of precision and recall, of the second of two classes or on average over more",
            leads=False,
        ),
        "nll": number(
            "Negative log-likelihood",
            "Mean negative log-probability of the true label, nats per example (NLL)",
            short="NLL",
            words=("lower negative log-likelihood", "higher negative log-likelihood"),
            leads=False,
        ),
        "brier": number(
            "Brier score",
            "Squared distance between the probabilities and the label's indicator, 0 to 2",
            leads=False,
        ),
        "ece": share(
            "Calibration error",
            "Expected distance between confidence and accuracy, over bins of the winning class's probability (ECE)",
            short="ECE",
            better=False,
            words=("better calibrated", "worse calibrated"),
        ),
        "overconfidence": share(
            "Overconfidence error",
            "Confidence in excess of accuracy, weighted by confidence (OE)",
            short="OE",
            better=False,
            words=("less overconfident", "more overconfident"),
        ),
        "aurc": share(
            "Area under risk-coverage",
            "Mean error when only the most confident share is answered (AURC)",
            short="AURC",
            better=False,
            words=("lower area under risk-coverage", "higher area under risk-coverage"),
            leads=False,
        ),
        "pavpu": share(
            "PAvPU",
            "Share of predictions that are accurate and certain, or inaccurate and uncertain (p < 0.05 of Welch's "
            "t-test between the two leading classes)",
            leads=False,
        ),
        "auroc": number(
            "OOD detection (AUROC)",
            "Probability that an input of this set has a higher entropy than an in-domain one",
            short="AUROC",
            better=True,
            words=(
                "better at detecting out-of-distribution inputs",
                "worse at detecting out-of-distribution inputs",
            ),
        ),
        "fpr95": share(
            "OOD false positives (FPR95)",
            "Share of in-domain inputs flagged when 95% of this set is",
            short="FPR95",
            better=False,
            words=("fewer false positives in OOD detection", "more false positives in OOD detection"),
            leads=False,
        ),
    }
)
"""Measures of classifiers, in the order of tables."""


class _Names(dict[str, str]):
    """Names of models: those of the mapping, or else made of their keys."""

    def __init__(self, names: Mapping[str, str], otherwise: Callable[[str], str]) -> None:
        super().__init__(names)
        self._otherwise = otherwise

    def __missing__(self, key: str) -> str:
        return self._otherwise(key)


MODEL_TITLES: Mapping[ModelKey, str] = _Names(
    {
        "variational": "Variational alignment",
        "bayesian_mean": "Bayesian, mean of draws",
        "bayesian_expectation": "Bayesian, posterior-mean weights",
        "bayesian_moments": "Bayesian, closed form",
    },
    lambda key: key.replace("_", " ").capitalize(),
)
"""Names of the models in tables; for another key, the key with spaces for underscores."""

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
"""Short names of the models in charts and sentences; ``"start"`` is the network before training."""

ROLE_TITLES: Mapping[Role, str] = MappingProxyType(
    {"in_domain": "in domain", "shifted": "shifted", "out_of_domain": "OOD"}
)
"""Names of the roles of data sets."""

ROLE_STYLES: Mapping[Role, str] = MappingProxyType(
    {"in_domain": "in", "shifted": "shift", "out_of_domain": "out"}
)
"""Their classes in the style sheet."""


def signed(words: str) -> str:
    """A number in words, with the sign of minus for a hyphen."""
    return words.replace("-", MINUS)


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
