"""Draws ``docs/images/posterior_width.svg``: Weibull densities of one mean, and their spread against k.

    python docs/_figures/posterior_width.py

The same file comes out every time. Grey and the four colours are legible on light and on dark pages.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from scipy.integrate import quad
from scipy.special import gamma
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

FILE = Path(__file__).parents[1] / "images" / "posterior_width.svg"
COLOURS = {0.5: "#d9822b", 1.0: "#b5487a", 3.0: "#4c78a8", 10.0: "#2a9d6f"}
MEAN = 0.25
TRUNCATION = (0.1, 0.9)


def density(s: np.ndarray, k: float) -> np.ndarray:
    """Weibull density of shape k whose mean is MEAN."""
    scale = MEAN / gamma(1 + 1 / k)
    return k / scale * (s / scale) ** (k - 1) * np.exp(-((s / scale) ** k))


def exact_spread(k: float) -> float:
    """Standard deviation over mean."""
    return float(np.sqrt(gamma(1 + 2 / k) / gamma(1 + 1 / k) ** 2 - 1))


def truncated_spread(k: float) -> float:
    """The same for noise from TRUNCATION, by quadrature."""
    low, high = TRUNCATION

    def moment(power: int) -> float:
        value, _ = quad(lambda u: (-np.log1p(-u)) ** (power / k), low, high)
        return float(value) / (high - low)

    return float(np.sqrt(moment(2) / moment(1) ** 2 - 1))


def draw_densities(axes: Axes) -> None:
    """Left panel."""
    s = np.linspace(1e-3, 1.0, 400)
    for k, colour in COLOURS.items():
        axes.plot(s, density(s, k), color=colour, label=f"k = {k:g}")
    axes.axvline(MEAN, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(xlim=(0, 1), ylim=(0, 14), xlabel="S", title=f"density of S, mean {MEAN}")


def draw_spreads(axes: Axes) -> None:
    """Right panel."""
    ks = np.geomspace(0.3, 30, 120)
    axes.plot(ks, [exact_spread(k) for k in ks], color="#4c78a8", label="exact")
    axes.plot(ks, [truncated_spread(k) for k in ks], color="#d9822b", linestyle="--", label="truncated")
    axes.set(xscale="log", yscale="log", xlabel="concentration k", title="std/mean of S by noise")


def main() -> None:
    """Writes the file."""
    with mpl.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
        draw_densities(left)
        draw_spreads(right)
        for axes in (left, right):
            axes.legend(frameon=False)
        FILE.parent.mkdir(exist_ok=True)
        figure.savefig(FILE, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
