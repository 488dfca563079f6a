"""Simulation-based calibration (Talts et al. 2018): are the posteriors of attention those of their own model?

    python tests/benchmarks/study.py calibration --replications 1000

A replication draws weights from the prior and data from the weights, infers a posterior from the data, and notes the
rank of the true quantity among its draws. Of the exact posterior the ranks are uniform. Two models are small enough
for the exact posterior to be drawn too, which tests the procedure itself:

- attention of one query over five keys, S_j ~ Gamma(1, 1), W = S / sum S, and 20 observations
  y_i ~ Normal(sum_j W_j v_ij, 1) with values v_ij ~ Normal(0, 1) that are given; ranks of W_1. Each replication has a
  query of its own, so that the scores of its posterior are free. Maps of the upward path are shared, as in a network.
- regression with two weights, Normal(0, 1) each, and ten observations; ranks of the first weight among 20 particles.

It writes docs/data/calibration.json.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import pyro
import pyro.distributions as dist
import study
import torch
import typer
from rich.console import Console
from rich.table import Table
from scipy.stats import kstest
from torch import Tensor, nn

from probattn import BayesianAttention
from probattn.inference import AttentionELBO, AttentionGuide
from probattn.particles import MedianRBF, sgld_direction, spos_direction, svgd_direction
from probattn.tasks.run import package_versions

KEYS, OBSERVATIONS, DRAWS = 5, 20, 99
WEIGHTS, POINTS, PARTICLES = 2, 10, 20
BINS = 10
RATE = 0.03
"""Learning rate of the scores at first; it falls to zero."""

PRIOR: Mapping[str, Any] = {"prior": "constant", "prior_concentration": 1.0}
EXACT_ELBO: Mapping[str, Any] = {**PRIOR, "kl_reduction": "sum", "scores": "raw"}
POSTERIORS: Mapping[str, tuple[BayesianAttention, float]] = {
    "babn": (BayesianAttention(**EXACT_ELBO), 1.0),
    "babn_default": (BayesianAttention(**PRIOR), 1e-3),
    "bam_10": (BayesianAttention.bam(10.0, **EXACT_ELBO), 1.0),
    "bam_3": (BayesianAttention.bam(3.0, **EXACT_ELBO), 1.0),
    "bam_1": (BayesianAttention.bam(1.0, **EXACT_ELBO), 1.0),
    "bam_10_default": (BayesianAttention.bam(10.0, **PRIOR), 1e-3),
}
"""Options and the weight of the KL: the exact evidence lower bound, and the defaults of fine-tuning."""
SAMPLERS = ("svgd", "spos", "sgld")


@dataclass(frozen=True)
class Replications:
    """Linear models with unit noise: true weights ``[R, K]``, inputs ``[R, n, K]``, observations ``[R, n]``."""

    truth: Tensor
    inputs: Tensor
    y: Tensor
    size: ClassVar[tuple[int, int]]
    """n and K."""

    @staticmethod
    @abstractmethod
    def prior(replications: int, draw: torch.Generator) -> Tensor:
        """Draws of the weights ``[R, K]``."""

    @classmethod
    def simulated(cls, replications: int, seed: int) -> Self:
        """Draws from the model."""
        draw = torch.Generator().manual_seed(seed)
        truth = cls.prior(replications, draw)
        inputs = torch.randn(replications, *cls.size, generator=draw)
        mean = (inputs @ truth[..., None])[..., 0]
        return cls(truth, inputs, mean + torch.randn(mean.shape, generator=draw))


class Attention(Replications):
    """The first model: weights of attention over keys, whose values are the inputs."""

    size = (OBSERVATIONS, KEYS)

    @staticmethod
    def prior(replications: int, draw: torch.Generator) -> Tensor:
        """Normalised gamma variables."""
        gamma = -torch.rand(replications, KEYS, generator=draw).clamp_min(1e-12).log()  # Gamma(1, 1)
        return gamma / gamma.sum(dim=1, keepdim=True)

    def log_likelihood(self, weights: Tensor) -> Tensor:
        """``[P, R]`` of weights ``[P, R, K]``."""
        mean = torch.einsum("prk,rnk->prn", weights, self.inputs)
        return dist.Normal(mean, 1.0).log_prob(self.y).sum(dim=-1)

    def exact(self, seed: int, proposals: int = 20_000) -> Tensor:
        """Draws ``[P, R]`` of W_1 from the posterior, resampled from the prior by their likelihood."""
        torch.manual_seed(seed)
        found = []
        for row in range(len(self.y)):
            one = Attention(*(each[row : row + 1] for each in (self.truth, self.inputs, self.y)))
            proposed = torch.distributions.Dirichlet(torch.ones(KEYS)).sample((proposals, 1))
            chosen = one.log_likelihood(proposed)[:, 0].softmax(dim=0).multinomial(DRAWS, replacement=True)
            found.append(proposed[chosen, 0, 0])
        return torch.stack(found, dim=1)

    def inferred(self, method: BayesianAttention, kl_weight: float, steps: int, seed: int) -> Tensor:
        """Draws ``[P, R]`` of W_1 from a posterior that is fitted by the method's objective."""
        torch.manual_seed(seed)
        rows = len(self.y)
        site = method.build(1, KEYS)
        scores = nn.Parameter(0.1 * torch.randn(rows, KEYS))
        key = torch.eye(KEYS).expand(rows, 1, -1, -1)
        value = self.inputs.mT[:, None]

        def model() -> None:
            query = (scores * KEYS**0.5)[:, None, None]
            with pyro.plate("data", rows):
                output, _ = site("site", query, key, value)
                pyro.sample("y", dist.Normal(output[:, 0, 0], 1.0).to_event(1), obs=self.y)

        objective = AttentionELBO(num_particles=4)(model, AttentionGuide(model, kl_weight=kl_weight))
        groups = [{"params": [scores]}, {"params": list(site.parameters()), "lr": 0.1 * RATE}]
        optimizer = torch.optim.Adam([group for group in groups if group["params"]], lr=RATE)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        for _ in range(steps):
            optimizer.zero_grad()
            (rows * objective().loss).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            drawn = site.posterior(scores[:, None, None]).sample((DRAWS,))[:, :, 0, 0]
        return (drawn / drawn.sum(dim=-1, keepdim=True))[..., 0]


class Regression(Replications):
    """The second model."""

    size = (POINTS, WEIGHTS)

    @staticmethod
    def prior(replications: int, draw: torch.Generator) -> Tensor:
        """Standard normal variables."""
        return torch.randn(replications, WEIGHTS, generator=draw)

    def normal(self, row: int) -> tuple[Tensor, Tensor]:
        """Precision and mean of a replication's posterior."""
        x = self.inputs[row]
        precision = torch.eye(WEIGHTS) + x.T @ x
        return precision, torch.linalg.solve(precision, x.T @ self.y[row])

    def exact(self, seed: int) -> Tensor:
        """Draws ``[P, R]`` of the first weight from the posterior."""
        torch.manual_seed(seed)
        found = []
        for row in range(len(self.y)):
            precision, mean = self.normal(row)
            law = torch.distributions.MultivariateNormal(mean, precision_matrix=precision)
            found.append(law.sample((PARTICLES,))[:, 0])
        return torch.stack(found, dim=1)

    def particles(self, sampler: str, steps: int, seed: int) -> Tensor:
        """The first weight of particles ``[P, R]`` after so many steps; their kernel has the median bandwidth."""
        torch.manual_seed(seed)
        kernel, step_size, found = MedianRBF(), 0.01, []
        for row in range(len(self.y)):
            precision, mean = self.normal(row)
            particles = torch.randn(PARTICLES, WEIGHTS)
            for step in range(steps):
                size = step_size * (1 if sampler != "svgd" else 10 * (1 - step / steps))
                grads = (particles - mean) @ precision
                if sampler == "svgd":
                    direction = svgd_direction(particles, grads, kernel)
                elif sampler == "spos":
                    direction = spos_direction(particles, grads, kernel, langevin=1.0, step_size=size)
                else:
                    direction = sgld_direction(particles, grads, inverse_temperature=1.0, step_size=size)
                particles = particles + size * direction
            found.append(particles[:, 0])
        return torch.stack(found, dim=1)


def ranks(truth: Tensor, draws: Tensor) -> Tensor:
    """Rank of each true value ``[R]`` among draws ``[P, R]``, 0 to P."""
    return (draws < truth).sum(dim=0)


def uniformity(found: Tensor, draws: int, seed: int) -> dict[str, Any]:
    """Kolmogorov and Smirnov's test of ranks, 0 to ``draws``, made continuous by uniform noise, and their histogram.

    ``spread`` is their standard deviation over that of uniform ones: above 1 the posterior is too narrow.
    """
    noise = torch.rand(found.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    uniform = (found + noise) / (draws + 1)
    test = kstest(uniform.numpy(), "uniform")
    counts = torch.histc(uniform, BINS, 0.0, 1.0).long().tolist()
    return {
        "statistic": float(test.statistic),
        "p": float(test.pvalue),
        "mean": uniform.mean().item(),
        "spread": uniform.std().item() * 12**0.5,
        "histogram": counts,
    }


@dataclass(kw_only=True)
class CalibrationStudy:
    """Ranks of both models under every method."""

    replications: Annotated[int, typer.Option(min=10, help="Simulated data sets of each model.")] = 1000
    steps: Annotated[int, typer.Option(min=1, help="Updates of a variational posterior.")] = 2000
    moves: Annotated[int, typer.Option(min=1, help="Steps of particles.")] = 500
    seed: Annotated[int, typer.Option(min=0, help="Of the simulations and the inference.")] = 0
    output: study.Output = study.DATA / "calibration.json"

    def posteriors(self) -> Iterator[tuple[str, str, Tensor, Callable[[], Tensor]]]:
        """Model, method, true values, and what draws from the method's posterior."""
        attention = Attention.simulated(self.replications, self.seed)
        yield "attention", "exact", attention.truth[:, 0], lambda: attention.exact(self.seed)
        for name, (method, weight) in POSTERIORS.items():
            yield (
                "attention",
                name,
                attention.truth[:, 0],
                lambda method=method, weight=weight: attention.inferred(
                    method, weight, self.steps, self.seed
                ),
            )
        regression = Regression.simulated(self.replications, self.seed)
        yield "regression", "exact", regression.truth[:, 0], lambda: regression.exact(self.seed)
        for sampler in SAMPLERS:
            yield (
                "regression",
                sampler,
                regression.truth[:, 0],
                lambda sampler=sampler: regression.particles(sampler, self.moves, self.seed),
            )

    def main(self) -> study.Content:
        """Infers all posteriors, tests their ranks and writes what was found."""
        setting = {name: getattr(self, name) for name in ("replications", "steps", "moves", "seed")}
        content: study.Content = {"setting": {**setting, "versions": package_versions()}, "runs": []}
        shown = Table("model", "method", "KS", "p", "spread")
        for model, name, truth, draw in self.posteriors():
            drawn = draw()
            run = {"model": model, "method": name}
            run |= uniformity(ranks(truth, drawn), len(drawn), self.seed)
            content["runs"].append(run)
            typer.echo(f"{model}, {name}: KS {run['statistic']:.3f}, p {run['p']:.3g}")
            shown.add_row(model, name, *(f"{run[each]:.3g}" for each in ("statistic", "p", "spread")))
            study.write_json(content, self.output)
        Console(width=100).print(shown)
        return content


STUDY = CalibrationStudy
