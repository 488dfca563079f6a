"""Predictions over a loader equal those of its batches; dropout draws are seeded and leave no trace."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

import probattn
from probattn.inference.predictive import posterior_expectation, posterior_predict
from probattn.report.collect import predict_bayesian, predict_deterministic, training_curves


class Toy(PyroModule):
    """Attention over a few vectors, then three classes."""

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


def batches(*sizes: int, labels: bool = True) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for size in sizes:
        batch = {"x": torch.randn(size, 4, 8, generator=generator)}
        if labels:
            batch["labels"] = torch.randint(3, (size,), generator=generator)
        made.append(batch)
    return made


@pytest.fixture
def toy() -> Toy:
    torch.manual_seed(0)
    return Toy().train()


def test_bayesian_predictions_are_those_of_the_batches(toy: Toy) -> None:
    loader = batches(5, 3)
    found = predict_bayesian(toy, loader, 6, seed=4)
    assert found.draws.shape == (6, 8, 3)
    expected = [posterior_predict(toy, batch, 6, seed=(4, number)) for number, batch in enumerate(loader)]
    torch.testing.assert_close(found.draws, torch.cat([item.probabilities for item in expected], dim=1))
    points = [posterior_expectation(toy, {"x": batch["x"]}).softmax(-1) for batch in loader]
    torch.testing.assert_close(found.expectation, torch.cat(points))
    torch.testing.assert_close(found.labels, torch.cat([batch["labels"] for batch in loader]))
    assert (found.draws.std(dim=0) > 0).all()
    assert toy.training


def test_equal_batches_have_draws_of_their_own(toy: Toy) -> None:
    batch = batches(4, labels=False)[0]
    found = predict_bayesian(toy, [batch, batch], 5)
    assert found.labels is None
    assert not torch.equal(found.draws[:, :4], found.draws[:, 4:])
    torch.testing.assert_close(found.expectation[:4], found.expectation[4:])


def test_the_chunk_size_changes_no_draw(toy: Toy) -> None:
    loader = batches(5)
    whole, parts = predict_bayesian(toy, loader, 7), predict_bayesian(toy, loader, 7, chunk_size=2)
    torch.testing.assert_close(whole.draws, parts.draws)


class Dropping(nn.Module):
    """A network with dropout as a module and as a function, and with running statistics."""

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


@pytest.fixture
def dropping() -> Dropping:
    torch.manual_seed(0)
    return Dropping()


def test_the_point_prediction_has_no_dropout(dropping: Dropping) -> None:
    loader = batches(5, 3)
    found = predict_deterministic(dropping, loader, 10)
    dropping.eval()
    with torch.no_grad():
        expected = torch.cat([dropping({"x": batch["x"]}).softmax(-1) for batch in loader])
    torch.testing.assert_close(found.probabilities, expected)
    assert found.draws is not None
    assert found.draws.shape == (10, 8, 3)
    assert (found.draws.std(dim=0) > 0).all()
    torch.testing.assert_close(found.draws.sum(-1), torch.ones(10, 8))


def test_dropout_draws_scatter_around_the_point(dropping: Dropping) -> None:
    """Inverted dropout keeps the mean of the logits; a small rate keeps the mean probability close."""
    gentle = Dropping(p=0.05)
    gentle.load_state_dict(dropping.state_dict())
    found = predict_deterministic(gentle, batches(6), 400)
    assert found.draws is not None
    torch.testing.assert_close(found.draws.mean(dim=0), found.probabilities, atol=0.02, rtol=0)


def test_draws_are_folded_into_passes_of_bounded_size(dropping: Dropping) -> None:
    predict_deterministic(dropping, batches(6), 7)
    assert [size for size, training in dropping.calls if training] == [12, 12, 12, 6]


def test_dropout_leaves_no_trace(dropping: Dropping) -> None:
    dropping.train()
    dropping.drop.eval()
    state = {name: value.clone() for name, value in dropping.state_dict().items()}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = predict_deterministic(dropping, batches(6), 4, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again = predict_deterministic(dropping, batches(6), 4, seed=1)
    other = predict_deterministic(dropping, batches(6), 4, seed=2)
    assert first.draws is not None
    assert again.draws is not None
    assert torch.equal(first.draws, again.draws)
    assert not torch.equal(first.draws, other.draws)
    assert all(torch.equal(value, state[name]) for name, value in dropping.state_dict().items())
    assert (dropping.training, dropping.norm.training, dropping.drop.training) == (True, True, False)


def test_a_failure_leaves_the_mode(dropping: Dropping) -> None:
    with pytest.raises(KeyError):
        predict_deterministic(dropping, [{"y": torch.zeros(2, 4, 8)}], 2)
    assert dropping.training


def test_a_network_without_dropout_has_no_draws() -> None:
    torch.manual_seed(0)
    assert predict_deterministic(Dropping(p=0.0), batches(6), 4).draws is None


def test_rounding_is_no_draw() -> None:
    """An accelerator rounds the rows of a larger batch in another way."""

    class Rounding(Dropping):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            logits = super().forward(batch)
            return logits * (1 + 1e-6 * torch.arange(len(logits))[:, None])

    torch.manual_seed(0)
    assert predict_deterministic(Rounding(p=0.0), batches(6), 4).draws is None
    found = predict_deterministic(Rounding(p=0.1), batches(6), 4).draws
    assert found is not None
    assert found.shape == (4, 6, 3)


def test_without_draws_a_batch_is_one_pass(dropping: Dropping) -> None:
    found = predict_deterministic(dropping, batches(6, 2), 0)
    assert found.draws is None
    assert dropping.calls == [(6, False), (2, False)]
    torch.testing.assert_close(
        found.probabilities, predict_deterministic(dropping, batches(6, 2), 3).probabilities
    )


def test_nothing_to_predict_is_refused(toy: Toy, dropping: Dropping) -> None:
    with pytest.raises(ValueError, match="predict_bayesian: expected at least one batch"):
        predict_bayesian(toy, [])
    with pytest.raises(ValueError, match="predict_deterministic: expected at least one batch"):
        predict_deterministic(dropping, [])
    with pytest.raises(ValueError, match="num_samples >= 0, got -1"):
        predict_deterministic(dropping, batches(2), -1)
    mixed = [*batches(2), *batches(2, labels=False)]
    with pytest.raises(ValueError, match="labels in every batch or in none, got them in 1 of 2"):
        predict_deterministic(dropping, mixed, 2)


def records(count: int) -> list[dict[str, object]]:
    return [
        {"kind": "train", "step": 2 * n, "loss": float(n), "factors": 0.0, "note": "x"}
        for n in range(1, count + 1)
    ]


def test_kinds_and_quantities_part() -> None:
    mixed = [*records(3), {"kind": "validation", "step": 6, "loss": 0.5, "accuracy": 0.75}]
    curves = training_curves(mixed, "bayesian_mean")
    assert [(curve.name, curve.kind, curve.steps, curve.values) for curve in curves] == [
        ("loss", "train", (2, 4, 6), (1.0, 2.0, 3.0)),
        ("loss", "validation", (6,), (0.5,)),
        ("accuracy", "validation", (6,), (0.75,)),
    ]


def test_a_null_leaves_a_gap_and_a_constant_0_is_no_curve() -> None:
    gap = [*records(2), {"kind": "train", "step": 6, "loss": None}]
    (curve,) = training_curves(gap, "deterministic", quantities=("loss", "factors", "note"))
    assert curve.steps == (2, 4)


@pytest.mark.parametrize(("divergence", "names"), [(0.0, ["loss"]), (2.0, ["loss", "kl_nats", "kl_weight"])])
def test_the_weight_of_the_kl_is_a_curve_of_training_where_there_is_a_kl(divergence, names) -> None:
    found = [{**record, "kl_nats": divergence, "kl_weight": 0.5} for record in records(2)]
    found.append({**found[-1], "kind": "validation"})
    curves = training_curves(found, "deterministic")
    assert [curve.name for curve in curves if curve.kind == "train"] == names
    assert [curve.name for curve in curves if curve.kind == "validation"] == names[:2]


@pytest.mark.parametrize(("count", "window", "points"), [(10, 1, 10), (11, 2, 6), (35, 4, 9)])
def test_long_curves_are_averaged_in_windows(count: int, window: int, points: int) -> None:
    (curve,) = training_curves(records(count), "deterministic", points=10)
    assert (curve.window, len(curve.values)) == (window, points)
    assert curve.values[0] == pytest.approx((1 + window) / 2)
    assert (curve.steps[0], curve.steps[-1]) == (2 * window, 2 * count)


def test_no_records_no_curves() -> None:
    assert training_curves([], "deterministic") == []


def test_probabilities_are_those_of_the_programs_link(toy: Toy, dropping: Dropping) -> None:
    softmax, plain = predict_bayesian(toy, batches(3), 2), predict_deterministic(dropping, batches(3), 2)
    toy.link = dropping.link = "sigmoid"
    found, own = predict_bayesian(toy, batches(3), 2), predict_deterministic(dropping, batches(3), 2)
    assert own.draws is not None and plain.draws is not None
    for sigmoid, other in (
        (found.draws, softmax.draws),
        (found.expectation, softmax.expectation),
        (own.probabilities, plain.probabilities),
        (own.draws, plain.draws),
    ):
        torch.testing.assert_close(sigmoid.logit().softmax(-1), other)
        assert (sigmoid.sum(-1) - 1).abs().max() > 0.01
