"""Spread of the weights against draws held in full."""

import pyro
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor

import probattn
from probattn.inference.predictive import posterior_predict
from probattn.report.sites import WeightSpread, site_health, weight_spreads


class Toy(PyroModule):
    def __init__(self, method: probattn.BayesianAttention) -> None:
        super().__init__()
        self.attend = probattn.MultiheadAttention(8, 2, batch_first=True, method=method)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = batch["x"]
        with pyro.plate("data", len(x)):
            mixed, _ = self.attend(x, x, x, key_padding_mask=batch["attention_mask"] == 0)
        return mixed.mean(dim=1)


def toy_batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    return [
        {"x": torch.randn(3, 5, 8, generator=generator), "attention_mask": mask},
        {
            "x": torch.randn(2, 4, 8, generator=generator),
            "attention_mask": torch.ones(2, 4, dtype=torch.long),
        },
    ]


def test_spread_is_the_mean_over_valid_pairs() -> None:
    torch.manual_seed(0)
    model = Toy(probattn.BayesianAttention())
    batches = toy_batches()
    (site, spread), *others = weight_spreads(model, batches, 9, seed=3).items()
    assert not others
    ratios = []
    for number, batch in enumerate(batches):
        draws = posterior_predict(model, batch, 9, seed=(3, number), attention="all").attention[site]
        valid = batch["attention_mask"].bool()
        for row, kept in enumerate(valid):
            own = draws[:, row][:, :, kept][..., kept]  # [P, H, t, t]
            ratios.append((own.std(dim=0) / own.mean(dim=0)).flatten())
    pairs = torch.cat(ratios).double()
    assert spread.mean == pytest.approx(pairs.mean().item(), rel=1e-5)
    assert spread.variation == pytest.approx(pairs.std(correction=0).item() / pairs.mean().item(), rel=1e-5)


def test_a_sure_posterior_spreads_less() -> None:
    torch.manual_seed(0)
    loose, tight = (
        weight_spreads(Toy(probattn.BayesianAttention.bam(concentration=k)), toy_batches(), 20)
        for k in (2.0, 50.0)
    )
    assert 0 < 5 * next(iter(tight.values())).mean < next(iter(loose.values())).mean


def test_health_takes_over_the_diagnostics() -> None:
    diagnostics = {
        "a": {"kl_nats": 3.0, "cv": 0.5},
        "b": {"kl_nats": 4.0, "concentration": 2.0, "kl_reduced": 0.1},
    }
    first, second = site_health(
        {"a": WeightSpread(0.2, 0.1), "b": WeightSpread(0.3, 0.4)}, diagnostics, "keys"
    )
    assert (first.variation, second.variation) == (0.1, 0.4)
    assert (first.site, first.spread, first.kl_nats, first.concentration) == ("a", 0.2, 3.0, None)
    assert (second.concentration, second.kl_reduced, second.reduction) == (2.0, 0.1, "keys")


def test_what_cannot_be_measured_is_refused() -> None:
    model = Toy(probattn.BayesianAttention())
    with pytest.raises(ValueError, match="at least 2 draws"):
        weight_spreads(model, toy_batches(), 1)
    with pytest.raises(ValueError, match="at least one batch"):
        weight_spreads(model, [])
    with pytest.raises(ValueError, match="diagnostics of the site 'a' with kl_nats, got those of b"):
        site_health({"a": WeightSpread(0.2, 0.1)}, {"b": {"kl_nats": 1.0}}, "mean")
