"""Particles of Gaussians whose variance and correlation are known, for every kernel and sampler.

    python tests/benchmarks/study.py particle
    python tests/benchmarks/study.py particle --methods sliced,spos --seeds 5

Deterministic directions are followed by Adam with a falling step until they rest. Those with noise take steps of their
own size, and their moments are means over the second half of the run. What is in the output file already is not run
again. The tables of docs/concepts/particles.md are made of that file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from typing import Any

import study
import torch
from pyro.infer import RBFSteinKernel
from torch import Tensor

from probattn.particles import (
    CosineKernel,
    InverseMultiquadric,
    LinearKernel,
    MarginalRBF,
    MedianRBF,
    ParticleKernel,
    PyroKernel,
    SlicedRBF,
    diagnose,
    sgld_direction,
    spos_direction,
    svgd_direction,
)

STEPS = 1000
RATE = 0.05
TIMES = {"burn_in": 3.0, "measured": 6.0}
"""Length of a noisy run, in relaxation times of the slowest direction."""
SHORTEST = {"burn_in": 10.0, "measured": 30.0}
STEP_OF_STIFFEST = 0.1
"""A noisy step times the largest curvature."""

Kernels = Callable[[torch.Generator], ParticleKernel]


@dataclass(frozen=True)
class Case:
    """M particles of a Gaussian of unit variances whose correlations are all r."""

    size: int
    correlation: float
    count: int

    @property
    def name(self) -> str:
        """As the file has it."""
        return f"{self.size},{self.correlation:g}"

    def precision(self) -> Tensor:
        """``[N, N]``, by the closed form."""
        rest = 1 - self.correlation
        common = self.correlation / (rest * (rest + self.size * self.correlation))
        return torch.eye(self.size, dtype=torch.float64) / rest - common

    def curvatures(self) -> tuple[float, float]:
        """Smallest and largest curvature of U."""
        rest = 1 - self.correlation
        wide = rest + self.size * self.correlation
        return 1 / max(wide, rest), 1 / min(wide, rest)


CASES = (
    Case(1, 0.0, 12),
    Case(10, 0.0, 12),
    Case(100, 0.0, 12),
    Case(1000, 0.0, 12),
    Case(2, 0.9, 30),
    Case(10, 0.9, 30),
    Case(50, 0.5, 30),
    Case(50, 0.9, 12),
    Case(100, 0.5, 12),
)
STILL: dict[str, Kernels] = {
    "median": lambda _: MedianRBF(),
    "imq": lambda _: InverseMultiquadric(),
    "marginal": lambda _: MarginalRBF(),
    "sliced": lambda generator: SlicedRBF(generator=generator),
    "linear": lambda _: LinearKernel(),
    "cosine": lambda _: CosineKernel(),
    "pyro_multivariate": lambda _: PyroKernel(RBFSteinKernel(), "multivariate"),
    "pyro_univariate": lambda _: PyroKernel(RBFSteinKernel(), "univariate"),
}
NOISY = {"spos": 1.0, "sgld": 1.0}
"""Inverse temperatures; in SPOS Langevin's part weighs as much as SVGD's."""


def run_one(method: str, case: Case, seed: int) -> dict[str, Any]:
    """Moves particles by one method and measures where they come to."""
    generator = torch.Generator().manual_seed(seed)
    particles = torch.randn(case.count, case.size, dtype=torch.float64, generator=generator)
    kernel = STILL.get(method, STILL["median"])(generator)
    moments = (
        descend(particles, case, kernel)
        if method in STILL
        else wander(particles, case, method, kernel, generator)
    )
    found = diagnose(particles, gradient(particles, case), kernel)
    return {
        "variance": round(moments[0], 4),
        "correlation": None if case.size == 1 else round(moments[1], 4),
        "spread": None if found.spread is None else round(found.spread, 4),
        "smallest_distance": found.smallest_distance,
        "collapse": found.collapse(),
    }


def descend(particles: Tensor, case: Case, kernel: ParticleKernel) -> tuple[float, float]:
    """Follows Stein's direction to where it ends."""
    optimizer = torch.optim.Adam([particles], lr=RATE)
    falling = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / STEPS)) + 1e-3
    )
    for _ in range(STEPS):
        particles.grad = -svgd_direction(particles, gradient(particles, case), kernel)
        optimizer.step()
        falling.step()
    return moments_of(particles)


def wander(
    particles: Tensor, case: Case, method: str, kernel: ParticleKernel, generator: torch.Generator
) -> tuple[float, float]:
    """Takes noisy steps, and means of the moments after the burn-in."""
    slowest, stiffest = case.curvatures()
    noise = {
        "inverse_temperature": NOISY[method],
        "step_size": STEP_OF_STIFFEST / stiffest,
        "generator": generator,
    }
    lengths = {
        name: int(max(times / slowest, SHORTEST[name]) * NOISY[method] / noise["step_size"])
        for name, times in TIMES.items()
    }
    collected = []
    for step in range(sum(lengths.values())):
        grads = gradient(particles, case)
        direction = (
            sgld_direction(particles, grads, **noise)
            if method == "sgld"
            else spos_direction(particles, grads, kernel, langevin=1.0, **noise)
        )
        particles += noise["step_size"] * direction
        if step >= lengths["burn_in"] and step % 20 == 0:
            collected.append(moments_of(particles))
    variances, correlations = zip(*collected, strict=True)
    return sum(variances) / len(collected), sum(correlations) / len(collected)


def gradient(particles: Tensor, case: Case) -> Tensor:
    """Of U ``[M, N]``."""
    return particles.clone() if case.correlation == 0 else particles @ case.precision()


def moments_of(particles: Tensor) -> tuple[float, float]:
    """Unbiased variance, mean over dimensions, and correlation, mean over their pairs (0 of one dimension).

    The correlation is that of the mean covariance and the mean variance.
    """
    size = particles.shape[1]
    variances = particles.var(dim=0)
    total = particles.sum(dim=1).var()  # of the sum: all variances and all covariances
    if size == 1:
        return float(variances.mean()), 0.0
    covariance = (total - variances.sum()) / (size * (size - 1))
    return float(variances.mean()), float(covariance / variances.mean())


@dataclass(kw_only=True)
class ParticleStudy(study.FileStudy):
    """Kernels and samplers on all cases."""

    methods: study.Names = None
    seeds: study.Seeds = 2
    output: study.Output = study.DATA / "particles.json"

    words = "{method} {case} {seed}"

    def __post_init__(self) -> None:
        self.names = study.chosen("methods", self.methods, (*STILL, *NOISY))

    def begin(self) -> study.Content:
        """What the file holds, or an empty study."""
        if self.output.exists():
            return dict(study.read_json(self.output))
        versions = {name: version(name) for name in ("probattn", "torch", "pyro-ppl")}
        return {"versions": versions, "inverse_temperatures": dict(NOISY), "runs": []}

    def jobs(self) -> Iterator[study.Job]:
        """Method by method and seed by seed."""
        for method, seed, case in product(self.names, range(self.seeds), CASES):
            yield study.Job({"method": method, "case": case.name, "particles": case.count, "seed": seed})

    def measure(self, job: study.Job) -> study.Run:
        (case,) = (
            case for case in CASES if (case.name, case.count) == (job.head["case"], job.head["particles"])
        )
        return run_one(job.head["method"], case, job.head["seed"])

    def order(self, run: study.Run) -> tuple[Any, ...]:
        return run["method"], run["case"], run["seed"]

    def said(self, run: study.Run) -> str:
        return f"{run['variance']:.3f}, {run['correlation']}"


STUDY = ParticleStudy
