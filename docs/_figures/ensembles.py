"""Draws ``docs/images/ensembles.svg``: what particles and a long Markov chain say beside and between the data.

    python docs/_figures/ensembles.py

Progression of diabetes against body mass index (scikit-learn's data), with the middle of the range left out of the
training data. The same file comes out every time. Grey and the colours are legible on light and on dark pages.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from matplotlib.axes import Axes
from pyro.infer import MCMC, NUTS
from pyro.nn import PyroModule
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from probattn.inference import (
    EnsembleOptions,
    OptimizerOptions,
    ParticleEnsemble,
    SchedulerOptions,
    SVGDDriver,
)

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

FILE = Path(__file__).parents[1] / "images" / "ensembles.svg"
GREY = "#808080"
BLUE = "#4c78a8"
ORANGE = "#d9822b"
HIDDEN, NOISE, PRIOR, PARTICLES = 10, 0.75, 1.0, 30
GRID = torch.linspace(-3.5, 4.5, 161)


class Regression(PyroModule):
    """One hidden layer; the noise is known."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        sizes = {"weight": (1, HIDDEN), "bias": (HIDDEN,), "out": (HIDDEN,), "shift": ()}
        for name, size in sizes.items():
            setattr(self, name, nn.Parameter(PRIOR * torch.randn(size)))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        mean = torch.tanh(batch["x"].unsqueeze(-1) @ self.weight + self.bias) @ self.out + self.shift
        if "y" in batch:
            with pyro.plate("data", len(mean)):
                pyro.sample("y", dist.Normal(mean, NOISE), obs=batch["y"])
        return mean


class Bands(NamedTuple):
    """Functions on the grid ``[P, 161]``."""

    title: str
    functions: Tensor


def load() -> dict[str, Tensor]:
    """Both ends of the index, standardised."""
    table = load_diabetes()
    x, y = (torch.tensor(column, dtype=torch.float32) for column in (table.data[:, 2], table.target))
    x, y = ((column - column.mean()) / column.std() for column in (x, y))
    kept = ((x > -1.5) & (x < -0.6)) | ((x > 1.0) & (x < 2.0))
    chosen = kept.nonzero().squeeze(-1)[:60]
    return {"x": x[chosen], "y": y[chosen]}


def train(title: str, data: dict[str, Tensor], method: EnsembleOptions) -> Bands:
    """The functions of an ensemble that starts from the prior; noise wants plain steps, the others Adam's."""
    langevin = method.sampler == "sgld"
    name, rate, steps = ("SGD", 1.0, 2500) if langevin else ("Adam", 0.02, 1500)
    ensemble = ParticleEnsemble(Regression(0), PARTICLES, initial=Regression, execution="vectorized")
    driver = SVGDDriver(
        ensemble,
        method=method,
        optimizer=OptimizerOptions(name, learning_rate=rate, weight_decay=0.0),
        scheduler=None if langevin else SchedulerOptions("linear"),
        batch_size=len(data["x"]),
        max_grad_norm=None,
        log_every=steps,
        cpu=True,
        progress=False,
    )
    driver.fit(data, steps=steps)
    return Bands(title, ensemble.outputs({"x": GRID}).detach())


def sample(title: str, data: dict[str, Tensor]) -> Bands:
    """The functions of two chains."""
    sizes = [HIDDEN, HIDDEN, HIDDEN, 1]

    def split(theta: Tensor, x: Tensor) -> Tensor:
        weight, bias, out, shift = theta.split(sizes, dim=-1)
        return torch.tanh(x.unsqueeze(-1) * weight + bias) @ out + shift

    def model() -> None:
        theta = pyro.sample("theta", dist.Normal(torch.zeros(sum(sizes)), PRIOR).to_event(1))
        pyro.sample("y", dist.Normal(split(theta, data["x"]), NOISE).to_event(1), obs=data["y"])

    found = []
    for seed in range(2):
        pyro.set_rng_seed(seed)
        chain = MCMC(
            NUTS(model, jit_compile=True, ignore_jit_warnings=True, max_tree_depth=6),
            num_samples=300,
            warmup_steps=150,
            disable_progbar=True,
        )
        chain.run()
        found += [split(theta, GRID) for theta in chain.get_samples()["theta"][::3]]
    return Bands(title, torch.stack(found))


def draw(axes: Axes, bands: Bands, data: dict[str, Tensor]) -> None:
    """One panel: the mean, one and two standard deviations, and a few functions."""
    mean, std = bands.functions.mean(dim=0).numpy(), bands.functions.std(dim=0).numpy()
    grid = GRID.numpy()
    for width, alpha in ((2, 0.18), (1, 0.25)):
        axes.fill_between(grid, mean - width * std, mean + width * std, color=BLUE, alpha=alpha, linewidth=0)
    for function in bands.functions[:: max(1, len(bands.functions) // 8)].numpy():
        axes.plot(grid, function, color=GREY, linewidth=0.5, alpha=0.7)
    axes.plot(grid, mean, color=BLUE)
    axes.plot(data["x"].numpy(), data["y"].numpy(), ".", color=ORANGE, markersize=3)
    axes.text(0.5, 0.03, summary(bands), transform=axes.transAxes, ha="center", fontsize="x-small")
    axes.set(title=bands.title, xlim=(-3.5, 4.5), ylim=(-4, 5), xlabel="body mass index")


def summary(bands: Bands) -> str:
    """Standard deviations of the functions amid the data, in the gap and beyond."""
    std = bands.functions.std(dim=0).numpy()
    places = {"data": -1.0, "gap": 0.2, "beyond": 4.0}
    return "  ".join(f"{name} {np.interp(x, GRID.numpy(), std):.2f}" for name, x in places.items())


def main() -> None:
    """Writes the file."""
    data = load()
    panels = [
        sample("Markov chains (NUTS)", data),
        train("SGLD", data, EnsembleOptions("sgld", kernel="identity", prior=PRIOR, step_size=0.01)),
        train("SVGD, sliced kernel", data, EnsembleOptions(kernel="sliced_rbf", prior=PRIOR)),
        train("SVGD, median kernel", data, EnsembleOptions(prior=PRIOR)),
        train("deep ensemble", data, EnsembleOptions(kernel="identity", repulsion=0.0, prior=PRIOR)),
    ]
    style = {
        "svg.hashsalt": "probattn",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "text.color": GREY,
        "axes.edgecolor": GREY,
        "axes.labelcolor": GREY,
        "axes.titlesize": "medium",
        "xtick.color": GREY,
        "ytick.color": GREY,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(style):
        figure, grid = plt.subplots(1, 5, figsize=(11, 2.8), layout="constrained", sharey=True)
        for axes, bands in zip(grid, panels, strict=True):
            draw(axes, bands, data)
        grid[0].set_ylabel("progression")
        FILE.parent.mkdir(exist_ok=True)
        figure.savefig(FILE, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
