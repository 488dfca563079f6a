"""Predictions over batches equal those of each batch; dropout draws are seeded and leave no trace."""

from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

import probattn
from probattn.inference.predictive import posterior_expectation, posterior_predict
from probattn.report import Predictions
from probattn.tasks.answering import Drawing
from probattn.tasks.measured import predictions
from probattn.tasks.networks import Network


class Toy(PyroModule):
    """Attention over a few vectors, then three classes."""

    link = "softmax"

    def __init__(self) -> None:
        super().__init__()
        self.attend = probattn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = batch["x"]
        with pyro.plate("data", len(x)):
            mixed, _ = self.attend(x, x, x)
            logits = self.out(mixed.mean(dim=1))
            pyro.sample(
                "label", dist.Categorical(logits=logits), obs=batch.get("labels"), infer={"prediction": True}
            )
        return logits


class Dropping(nn.Module):
    """A network with dropout as a module and as a function, and with running statistics."""

    link = "softmax"

    def __init__(self, p: float = 0.3) -> None:
        super().__init__()
        self.p = p
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(p)
        self.out = nn.Linear(8, 3)
        self.calls: list[tuple[int, bool]] = []

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        assert "labels" not in batch
        self.calls.append((len(batch["x"]), self.training))
        hidden = self.drop(self.norm(batch["x"].mean(dim=1)))
        return self.out(nn.functional.dropout(hidden, self.p, training=self.training))


def batches(*sizes: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(size, 4, 8, generator=generator),
            "labels": torch.randint(3, (size,), generator=generator),
        }
        for size in sizes
    ]


def latent(program: Any, loader: list[dict[str, Tensor]], *drawing: Any, **options: Any) -> dict[str, Any]:
    return predictions(Network(program, Path(), "bayesian_mean"), loader, Drawing(*drawing), **options)


def plain(program: Any, loader: list[dict[str, Tensor]], *drawing: Any, **options: Any) -> Predictions:
    (found,) = predictions(
        Network(program, Path(), "deterministic"), loader, Drawing(*drawing), **options
    ).values()
    return found


@pytest.fixture
def toy() -> Toy:
    torch.manual_seed(0)
    return Toy().train()


@pytest.fixture
def dropping() -> Dropping:
    torch.manual_seed(0)
    return Dropping().eval()


def test_bayesian_predictions_are_those_of_the_batches(toy: Toy) -> None:
    loader = batches(5, 3)
    found = latent(toy, loader, 6, 4, moments=True)
    assert list(found) == ["bayesian_mean", "bayesian_expectation", "bayesian_moments"]
    assert found["bayesian_mean"].draws.shape == (6, 8, 3)
    drawn = [posterior_predict(toy, batch, 6, seed=(4, number)) for number, batch in enumerate(loader)]
    expected = torch.cat([item.probabilities for item in drawn], dim=1).double()
    torch.testing.assert_close(found["bayesian_mean"].draws, expected)
    torch.testing.assert_close(found["bayesian_mean"].probabilities, expected.mean(dim=0))
    points = [posterior_expectation(toy, {"x": batch["x"]}).softmax(-1) for batch in loader]
    torch.testing.assert_close(found["bayesian_expectation"].probabilities, torch.cat(points))
    assert found["bayesian_expectation"].draws is None
    assert (expected.std(dim=0) > 0).all()
    assert toy.training


def test_moments_are_those_of_the_batches(toy: Toy) -> None:
    loader = batches(5, 3)
    (found,) = latent(toy, loader, 20, 0, None, 32, "moments").values()
    closed = [
        probattn.posterior_moments(toy, {"x": batch["x"]}, num_samples=20, seed=(0, number))
        for number, batch in enumerate(loader)
    ]
    expected = torch.cat([item.mean_probabilities for item in closed]).double()
    torch.testing.assert_close(found.probabilities, expected)
    assert found.closed_form == 1 - torch.cat([item.drawn for item in closed]).double().mean().item()


def test_equal_batches_have_draws_of_their_own(toy: Toy) -> None:
    (batch,) = batches(4)
    found = latent(toy, [batch, batch], 5)
    draws, points = found["bayesian_mean"].draws, found["bayesian_expectation"].probabilities
    assert not torch.equal(draws[:, :4], draws[:, 4:])
    torch.testing.assert_close(points[:4], points[4:])
    second = latent(toy, [batch], 5, first_batch=1)["bayesian_mean"].draws
    torch.testing.assert_close(second, draws[:, 4:])


def test_the_chunk_size_changes_no_draw(toy: Toy) -> None:
    whole, parts = (latent(toy, batches(5), 7, 0, size)["bayesian_mean"].draws for size in (None, 2))
    torch.testing.assert_close(whole, parts)


def test_the_point_prediction_has_no_dropout(dropping: Dropping) -> None:
    loader = batches(5, 3)
    found = plain(dropping, loader, 10)
    with torch.no_grad():
        expected = torch.cat([dropping({"x": batch["x"]}).softmax(-1) for batch in loader])
    torch.testing.assert_close(found.probabilities, expected)
    assert found.draws is not None
    assert found.source == "dropout"
    assert found.draws.shape == (10, 8, 3)
    assert (found.draws.std(dim=0) > 0).all()
    torch.testing.assert_close(found.draws.sum(-1), torch.ones(10, 8))


def test_dropout_draws_scatter_around_the_point(dropping: Dropping) -> None:
    """Inverted dropout keeps the mean of the logits; a small rate keeps the mean probability close."""
    gentle = Dropping(p=0.05).eval()
    gentle.load_state_dict(dropping.state_dict())
    found = plain(gentle, batches(6), 400)
    assert found.draws is not None
    torch.testing.assert_close(found.draws.mean(dim=0), found.probabilities, atol=0.02, rtol=0)


def test_draws_are_folded_into_passes_of_bounded_size(dropping: Dropping) -> None:
    plain(dropping, batches(6), 7)
    assert [size for size, training in dropping.calls if training] == [12, 12, 12, 6]


def test_dropout_leaves_no_trace(dropping: Dropping) -> None:
    state = {name: value.clone() for name, value in dropping.state_dict().items()}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = plain(dropping, batches(6), 4, 1).draws
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again, other = plain(dropping, batches(6), 4, 1).draws, plain(dropping, batches(6), 4, 2).draws
    assert first is not None
    assert again is not None
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert all(torch.equal(value, state[name]) for name, value in dropping.state_dict().items())
    assert not any(module.training for module in dropping.modules())


def test_a_failure_leaves_the_mode() -> None:
    class Failing(Dropping):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            if self.training:
                raise KeyError("x")
            return super().forward(batch)

    failing = Failing().eval()
    with pytest.raises(KeyError):
        plain(failing, batches(2), 2)
    assert not any(module.training for module in failing.modules())


def test_a_network_without_dropout_has_no_draws() -> None:
    torch.manual_seed(0)
    assert plain(Dropping(p=0.0).eval(), batches(6), 4).draws is None


def test_rounding_is_no_draw() -> None:
    """An accelerator rounds the rows of a larger batch in another way."""

    class Rounding(Dropping):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            logits = super().forward(batch)
            return logits * (1 + 1e-6 * torch.arange(len(logits))[:, None])

    torch.manual_seed(0)
    assert plain(Rounding(p=0.0).eval(), batches(6), 4).draws is None
    found = plain(Rounding(p=0.1).eval(), batches(6), 4).draws
    assert found is not None
    assert found.shape == (4, 6, 3)


def test_without_draws_a_batch_is_one_pass(dropping: Dropping) -> None:
    for drawing, options in (((0,), {}), ((3,), {"dropout": False})):
        dropping.calls.clear()
        found = plain(dropping, batches(6, 2), *drawing, **options)
        assert found.draws is None
        assert dropping.calls == [(6, False), (2, False)]
        torch.testing.assert_close(found.probabilities, plain(dropping, batches(6, 2), 3).probabilities)


def test_probabilities_are_those_of_the_programs_link(toy: Toy, dropping: Dropping) -> None:
    softmax, single = latent(toy, batches(3), 2), plain(dropping, batches(3), 2)
    toy.link = dropping.link = "sigmoid"
    found, scored = latent(toy, batches(3), 2), plain(dropping, batches(3), 2)
    for sigmoid, other in (
        (found["bayesian_mean"].draws, softmax["bayesian_mean"].draws),
        (found["bayesian_expectation"].probabilities, softmax["bayesian_expectation"].probabilities),
        (scored.probabilities, single.probabilities),
        (scored.draws, single.draws),
    ):
        torch.testing.assert_close(sigmoid.logit().softmax(-1), other)
        assert (sigmoid.sum(-1) - 1).abs().max() > 0.01
