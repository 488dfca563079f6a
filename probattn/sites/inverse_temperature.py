"""Options of particles that an earlier version wrote, which named the noise by its inverse temperature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probattn.checks import check_number


class UnknownSizeError(ValueError):
    """A temperature that depends on the number of training data, which is not known."""


def without_inverse_temperature(options: Mapping[str, Any], unit: float | None) -> dict[str, Any]:
    r"""Options of an earlier version with ``inverse_temperature`` b, as ``temperature`` and ``langevin``.

    The noise had the variance :math:`2 / (b s \epsilon)` next to the gradient of u, with u's scale s (1 for heads, N
    for whole models) and :math:`b = N / s` by default; in "spos" b divided Langevin's part too. So "sgld" has
    :math:`T = N / (b s)`, and "spos" :math:`T = N / s` and :math:`w = 1 / b`. ``unit`` is N / s; None where the
    number of training data is not known, which is an error only if T needs it.

    Example:
        >>> without_inverse_temperature({"sampler": "spos", "inverse_temperature": 4.0}, None)
        {'sampler': 'spos', 'temperature': 'datum', 'langevin': 0.25}
        >>> without_inverse_temperature({"sampler": "sgld", "inverse_temperature": 4.0}, 100)
        {'sampler': 'sgld', 'temperature': 25.0, 'langevin': 1.0}
    """
    if "inverse_temperature" not in options:
        return dict(options)
    remaining = {name: value for name, value in options.items() if name != "inverse_temperature"}
    both = {"temperature", "langevin"} & remaining.keys()
    if both:
        raise ValueError(f"inverse_temperature: expected it or {min(both)}, which replaces it, got both")
    inverse, sampler = options["inverse_temperature"], options.get("sampler", "svgd")
    if inverse is not None:
        check_number("RepulsiveAttention", "inverse_temperature", inverse, positive=True)
    temperature: float | str = 1.0
    langevin = 1.0
    if sampler == "spos" and (inverse is not None or unit is not None):
        temperature = 1.0 if unit == 1 else "datum"
        langevin = 1 / (inverse or unit or 1)
    elif sampler == "sgld" and inverse is not None:
        temperature = _temperature(inverse, unit)
    return remaining | {"temperature": temperature, "langevin": langevin}


def _temperature(inverse: float, unit: float | None) -> float | str:
    if inverse == 1 and unit != 1:
        return "datum"
    if unit is None:
        raise UnknownSizeError(
            f"inverse_temperature {inverse} of 'sgld' is temperature N / {inverse}, N the number of training data; "
            "give temperature in its place"
        )
    return unit / inverse
