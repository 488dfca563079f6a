"""Laplace's approximation of a last layer against its matrices and laplace-torch; distances against scikit-learn."""

import pytest
import torch
from scipy import linalg
from sklearn.covariance import EmpiricalCovariance
from torch import nn

from probattn.inference.laplace import (
    FeatureDistance,
    Features,
    LastLayerLaplace,
    energy,
    last_features,
    last_layer,
)


def trained(bias=True, classes=3):
    """A layer at the maximum of its likelihood, and what it reads and says."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(200, 5).double(), torch.randint(0, classes, (200,))
    layer = nn.Linear(5, classes, bias=bias).double()
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=100)

    def loss():
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(layer(inputs), labels, reduction="sum")
        value.backward()
        return value

    optimizer.step(loss)
    return layer, Features(inputs, layer(inputs).detach(), labels)


@pytest.mark.parametrize("bias", [True, False])
def test_covariance_is_that_of_the_whole_matrices(bias):
    layer, features = trained(bias)
    found = LastLayerLaplace.fit(features, layer, precision=2.0)
    probabilities = features.logits.softmax(dim=-1)
    b = sum(p.diag() - torch.outer(p, p) for p in probabilities)
    a = sum(torch.outer(x, x) for x in features.inputs) / 200
    inverse = torch.linalg.inv(torch.kron(b, a) + 2 * torch.eye(15).double())
    for row in range(4):
        slope = torch.kron(torch.eye(3).double(), features.inputs[row : row + 1])
        expected = slope @ inverse @ slope.T
        if bias:
            expected = expected + torch.linalg.inv(b + 2 * torch.eye(3).double())
        torch.testing.assert_close(found.covariance(features.inputs[row : row + 1])[0], expected)


def test_the_precision_has_the_largest_evidence():
    layer, features = trained()
    found = LastLayerLaplace.fit(features, layer)
    weights = torch.cat([each.detach().flatten() for each in layer.parameters()])
    probabilities = features.logits.softmax(dim=-1)
    b = torch.diag(probabilities.sum(dim=0)) - probabilities.T @ probabilities
    a = features.inputs.T @ features.inputs / 200

    def evidence(precision):
        blocks = torch.block_diag(torch.kron(b, a), b) + precision * torch.eye(18)
        prior = 18 * torch.log(torch.tensor(precision))
        return float(-(precision * weights.square().sum() + torch.logdet(blocks) - prior) / 2)

    best = evidence(found.precision)
    assert all(evidence(found.precision * factor) < best for factor in (0.8, 1.25))


def test_it_is_laplace_torch():
    laplace = pytest.importorskip("laplace")
    layer, features = trained()
    data = torch.utils.data.TensorDataset(features.inputs, features.labels)
    known = laplace.Laplace(
        nn.Sequential(nn.Identity(), layer),
        "classification",
        subset_of_weights="last_layer",
        hessian_structure="kron",
        prior_precision=2.0,
    )
    known.fit(torch.utils.data.DataLoader(data, batch_size=200))
    found = LastLayerLaplace.fit(features, layer, precision=2.0)
    torch.testing.assert_close(found.probabilities(features), known(features.inputs, link_approx="probit"))


def test_draws_have_the_covariance_and_the_probit_mean():
    layer, features = trained()
    found = LastLayerLaplace.fit(features, layer, precision=50.0)
    draws = found.draws(features, 4000, seed=1)
    torch.testing.assert_close(draws.mean(dim=0), found.probabilities(features), rtol=0, atol=0.01)
    again = found.draws(features, 4000, seed=1)
    assert torch.equal(draws, again)


def test_distances_are_those_of_scikit_learn():
    _, features = trained()
    found = FeatureDistance.fit(features)
    means = torch.stack([features.inputs[features.labels == label].mean(dim=0) for label in range(3)])
    known = EmpiricalCovariance(assume_centered=True).fit((features.inputs - means[features.labels]).numpy())
    new = torch.randn(7, 5, generator=torch.Generator().manual_seed(3)).double()
    expected = torch.stack([torch.from_numpy(known.mahalanobis((new - mean).numpy())) for mean in means])
    torch.testing.assert_close(found(new), expected.amin(dim=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_of_features_that_depend_on_each_other(dtype):
    """Seven features of rank four: the pseudo-inverse is scipy's; a file gives the same distances."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(300, 4, generator=generator, dtype=dtype) @ torch.randn(
        4, 7, generator=generator, dtype=dtype
    )
    labels = torch.arange(300) % 3
    labels[labels == 1] = 4  # a class without any example has no mean
    found = FeatureDistance.fit(Features(mixed, torch.zeros(300, 5), labels))
    inputs = mixed.double()
    means = torch.stack([inputs[labels == label].mean(dim=0) for label in (0, 2, 4)])
    within = inputs - means[torch.searchsorted(torch.tensor([0, 2, 4]), labels)]
    precision = torch.from_numpy(linalg.pinvh((within.T @ within / 300).numpy(), rtol=1e-9))
    new = torch.randn(9, 4, generator=generator, dtype=dtype) @ torch.randn(
        4, 7, generator=generator, dtype=dtype
    )
    apart = new.double()[:, None] - means
    expected = torch.einsum("ncd,de,nce->nc", apart, precision, apart).amin(dim=-1)
    torch.testing.assert_close(found.precision, precision, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found(new), expected, rtol=1e-6, atol=1e-9)
    kept = FeatureDistance.loaded(found.dumped())
    assert torch.equal(kept(new), found(new)) and found(new).dtype == torch.float64


def test_rounding_of_features_is_no_direction():
    """Large features that vary little within classes, in two directions; float32 rounds in all six."""
    generator = torch.Generator().manual_seed(0)
    spread = 1e-3 * torch.randn(400, 2, generator=generator) @ torch.randn(2, 6, generator=generator)
    labels = torch.arange(400) % 2
    features = (5 + labels[:, None] + spread).float()
    found = FeatureDistance.fit(Features(features, torch.zeros(400, 2), labels))
    assert torch.linalg.matrix_rank(found.precision, hermitian=True) == 2
    moved = features + 4e-7 * torch.randn(features.shape, generator=generator)
    torch.testing.assert_close(found(moved), found(features), rtol=0.02, atol=0.02)


def test_energy_is_the_normaliser():
    logits = torch.randn(6, 4).double()
    torch.testing.assert_close(energy(logits), (logits.softmax(dim=-1).log() - logits)[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_are_what_the_last_layer_reads(dtype):
    torch.manual_seed(0)

    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, batch):
            return self.second(self.first(batch["x"]).tanh())

    program = Program().to(dtype)
    x, labels = torch.randn(5, 4, dtype=dtype), torch.arange(5) % 3
    layer = last_layer(program, 3)
    assert layer is program.second
    batches = [{"x": x[:3], "labels": labels[:3]}, {"x": x[3:], "labels": labels[3:]}]
    found = last_features(program, batches, layer)
    torch.testing.assert_close(found.inputs, program.first(x).tanh().double())
    torch.testing.assert_close(found.logits, program({"x": x}).double())
    assert found.labels.tolist() == labels.tolist() and not layer._forward_pre_hooks
    with pytest.raises(ValueError, match="expected a linear layer of 9 outputs, found none in Program"):
        last_layer(program, 9)
    with pytest.raises(ValueError, match="expected at least one batch, got none"):
        last_features(program, [], layer)
    for kind in (FeatureDistance.fit, lambda given: LastLayerLaplace.fit(given, layer)):
        with pytest.raises(ValueError, match="expected labels of the training data, got none"):
            kind(Features(found.inputs, found.logits, None))
