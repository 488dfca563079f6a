"""Texts of the measures that several of these tasks have."""

from typing import Literal

from probattn.inference.report.measures import TEXTS, MeasureText

ACCURACY, ECE = TEXTS["accuracy"], TEXTS["ece"]
AURC = TEXTS["aurc"]
PROPER = ("Pearson", "Spearman", "Brier", "Hamming")
"""Names of people, with which a measure may begin."""


def share(title: str, meaning: str, *, short: str = "", better: bool = True) -> MeasureText:
    """A measure that is a share; ``better`` if higher is better."""
    return _text(title, short, meaning, "share", better)


def number(title: str, meaning: str, *, short: str = "", better: bool = False) -> MeasureText:
    """A measure that is another number; ``better`` if higher is better."""
    return _text(title, short, meaning, "number", better)


def _text(
    title: str, short: str, meaning: str, unit: Literal["share", "number"], better: bool
) -> MeasureText:
    name = short or title
    lower = name if name[:2].isupper() or name.startswith(PROPER) else name[:1].lower() + name[1:]
    words = (f"higher {lower}", f"lower {lower}")
    gain, loss = words if better else words[::-1]
    return MeasureText(title, name, meaning, "higher" if better else "lower", unit, gain, loss)
