"""A model that trains in milliseconds, and runs of it; shared by the tests and by the programs they start."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from scipy import stats
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from probattn.inference.optimizers import OptimizerOptions
from probattn.inference.options import KLSchedule
from probattn.inference.svi import SVIDriver
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.site import AttentionSite, SiteSpec


class Regression(nn.Module):
    """y from x [B, 3, 4]; with ``attend`` through one site of two heads, without it there is no noise at all."""

    def __init__(self, attend: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.out = nn.Linear(4, 1)
        self.dropout = nn.Dropout(dropout)
        self.site = AttentionSite(BayesianAttention(), SiteSpec(2, 2)) if attend else None

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        x = batch["x"]
        with pyro.plate("data", len(x)):
            hidden = self.query(x).unflatten(-1, (2, 2)).transpose(1, 2)  # [B, H, T, D]
            if self.site is not None:
                hidden, _ = self.site("attention", hidden, hidden, hidden)
            hidden = self.dropout(hidden.transpose(1, 2).flatten(2).tanh())  # [B, T, 4]
            mean = self.out(hidden).squeeze(-1).mean(-1)
            return pyro.sample("y", dist.Normal(mean, 1.0), obs=batch["y"])


class NoisyRows:
    """A data set whose rows draw from Python's, numpy's (by scipy) and torch's global generators."""

    def __init__(self, data: Mapping[str, Tensor]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data["y"])

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        jitter = random.random() + float(stats.uniform.rvs()) + float(torch.rand(()))
        return {"x": self.data["x"][row], "y": self.data["y"][row] + 0.1 * jitter}


def tiny_data(rows: int = 14, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, 4, generator=generator)
    return {"x": x, "y": x.mean(dim=(1, 2)) + 0.1 * torch.randn(rows, generator=generator)}


def tiny_model(**options: Any) -> Regression:
    """The same initial weights at every call; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Regression(**options)


def half_linear(optimizer: torch.optim.Optimizer, total: int) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 1 - 0.5 * step / total)


def tiny_driver(model: nn.Module | None = None, **options: Any) -> SVIDriver:
    defaults: dict[str, Any] = {
        "optimizer": OptimizerOptions(learning_rate=0.01, site_learning_rate=0.02),
        "scheduler": half_linear,
        "kl_schedule": KLSchedule("linear", warmup_fraction=0.5),
        "batch_size": 4,
        "log_every": 1,
        "progress": False,
        "cpu": True,
    }
    return SVIDriver(tiny_model() if model is None else model, **(defaults | options))


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def run_that_can_be_killed(folder: Path, steps: int) -> None:
    """Everything random at once, a checkpoint every third step; continues what it finds in ``folder``."""
    driver = tiny_driver(
        tiny_model(dropout=0.2), folder=folder, accumulation=2, batch_size=2, checkpoint_every=3, eval_every=5
    )
    driver.fit(NoisyRows(tiny_data()), tiny_data(6, seed=2), steps=steps, resume="auto")
