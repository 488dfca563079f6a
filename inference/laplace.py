"""Baselines that need no other network: a posterior of the last layer (Laplace), and distances of its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from safetensors.torch import load, save
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from probattn.inference.predictive import posterior_expectation
from probattn.sites.particle_layers import STACK, particle_count

PRECISIONS = (1e-4, 1e4)
"""Range in which the precision of the prior is sought."""

FITTED = 4000
"""Most training examples of a run that its features are fitted to."""


class Features(NamedTuple):
    """Inputs ``[N, D]`` and logits ``[N, C]`` of a network's last layer for N rows, with labels ``[N]`` or None."""

    inputs: Tensor
    logits: Tensor
    labels: Tensor | None


def last_layer(net: nn.Module, num_outputs: int) -> nn.Linear:
    """Returns the last linear layer of a network with ``num_outputs`` outputs, which computes the logits.

    Raises:
        ValueError: there is no such layer.
    """
    linear = [module for module in net.modules() if isinstance(module, nn.Linear)]
    layers = [module for module in linear if module.out_features == num_outputs]
    if not layers:
        network = type(net).__name__
        raise ValueError(f"expected a linear layer of {num_outputs} outputs, found none in {network}")
    return layers[-1]


def last_features(
    program: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    layer: nn.Linear,
    *,
    label_name: str = "labels",
) -> Features:
    """Computes inputs and logits of the last layer, with latent attention at its posterior expectation.

    If layers of the network are particles, the inputs are averaged over particles.

    Args:
        program: model from a batch to logits ``[B, C]``.
        batches: batches on the program's device.
        layer: the last layer, from :func:`last_layer`.
        label_name: name of the labels in a batch.

    Returns:
        Inputs and logits in float64 on the CPU, with the labels if the batches have them.

    Raises:
        ValueError: no batch, or the layer does not have one input vector for each row of logits.
    """
    inputs, logits, labels = [], [], []
    count = particle_count(program) or 1
    with _reading(layer) as read:
        for batch in batches:
            unlabelled = {name: value for name, value in batch.items() if name != label_name}
            outputs = posterior_expectation(program, unlabelled)
            vectors = [value.unflatten(0, (count, -1)).mean(dim=0) for value in read]
            if len(read) != 1 or vectors[0].shape[:-1] != outputs.shape[:-1]:
                raise ValueError("expected a last layer that reads one vector for each row of logits")
            read.clear()
            inputs.append(vectors[0].cpu().double())
            logits.append(outputs.cpu().double())
            if label_name in batch:
                labels.append(batch[label_name].cpu())
    if not inputs:
        raise ValueError("last_features: expected at least one batch, got none")
    return Features(torch.cat(inputs), torch.cat(logits), torch.cat(labels) if labels else None)


@contextmanager
def _reading(layer: nn.Linear) -> Iterator[list[Tensor]]:
    """The inputs of a layer, as they come."""
    read: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, args: read.append(args[0].detach()))
    try:
        yield read
    finally:
        handle.remove()


@dataclass(frozen=True)
class LastLayerLaplace:
    r"""Laplace approximation to the posterior of a last layer's weights (MacKay 1992; Daxberger et al. 2021).

    All other weights are fixed. The precision matrix of the weights is the Kronecker-factored generalised Gauss-Newton
    matrix (Ritter et al. 2018) plus the precision :math:`\lambda` of a normal prior:

    .. math:: H = B \otimes A + \lambda I, \quad A = \frac{1}{N} \sum_n x_n x_n^\top, \quad
        B = \sum_n \mathrm{diag}(p_n) - p_n p_n^\top

    for the weights, with inputs :math:`x_n` and probabilities :math:`p_n`, and :math:`B + \lambda I` for the biases.
    The logits of a new input x have the covariance :math:`V \,\mathrm{diag}_c \big( \sum_d (u_d^\top x)^2 / (a_d b_c +
    \lambda) + 1 / (b_c + \lambda) \big) V^\top`.

    Attributes:
        input_values: eigenvalues :math:`a_d` of A, ``[D]``.
        input_vectors: eigenvectors :math:`u_d` of A, the columns of ``[D, D]``.
        output_values: eigenvalues :math:`b_c` of B, ``[C]``.
        output_vectors: V, the eigenvectors of B, the columns of ``[C, C]``.
        precision: :math:`\lambda`, precision of the prior.
        bias: whether the layer has a bias.
    """

    input_values: Tensor
    input_vectors: Tensor
    output_values: Tensor
    output_vectors: Tensor
    precision: float
    bias: bool

    @classmethod
    def fit(cls, features: Features, layer: nn.Linear, *, precision: float | None = None) -> LastLayerLaplace:
        """Fits the posterior to training data.

        Args:
            features: features of the training data, with labels.
            layer: the trained last layer.
            precision: precision of the prior; None for the one in [1e-4, 1e4] with the largest marginal likelihood.

        Raises:
            ValueError: the data have no labels, or the layer is a stack of particles.
        """
        if STACK in layer._modules:
            raise ValueError(
                "LastLayerLaplace.fit: expected one last layer, got that of several particles; take one of them, "
                "probattn.models.particle(net, 0)"
            )
        if features.labels is None:
            raise ValueError("LastLayerLaplace.fit: expected labels of the training data, got none")
        inputs, probabilities = features.inputs.double(), features.logits.double().softmax(dim=-1)
        a, u = torch.linalg.eigh(inputs.T @ inputs / len(inputs))
        b, v = torch.linalg.eigh(torch.diag(probabilities.sum(dim=0)) - probabilities.T @ probabilities)
        weights = [parameter.detach().cpu().double() for parameter in layer.parameters()]
        fitted = cls(a.clamp_min(0), u, b.clamp_min(0), v, 1.0, layer.bias is not None)
        if precision is None:
            squares = sum(float(weight.square().sum()) for weight in weights)
            count = sum(weight.numel() for weight in weights)
            form = {"bounds": tuple(map(math.log, PRECISIONS)), "method": "bounded"}
            optimum = minimize_scalar(lambda log: -fitted._evidence(math.exp(log), squares, count), **form)
            precision = math.exp(float(optimum.x))
        return cls(fitted.input_values, u, fitted.output_values, v, precision, fitted.bias)

    def _evidence(self, precision: float, squares: float, count: int) -> float:
        """Logarithm of the marginal likelihood without the likelihood, which the prior does not change."""
        blocks = [torch.outer(self.input_values, self.output_values)]
        blocks += [self.output_values] if self.bias else []
        determinant = sum(float((block + precision).log().sum()) for block in blocks)
        return -0.5 * (precision * squares + determinant - count * math.log(precision))

    def covariance(self, inputs: Tensor) -> Tensor:
        """Covariance of the logits, ``[N, C, C]``, for inputs ``[N, D]`` of the last layer."""
        along = (inputs.double() @ self.input_vectors).square()  # [N, D]
        spread = along @ (torch.outer(self.input_values, self.output_values) + self.precision).reciprocal()
        if self.bias:
            spread = spread + (self.output_values + self.precision).reciprocal()
        return torch.einsum("ac,nc,bc->nab", self.output_vectors, spread, self.output_vectors)

    def probabilities(self, features: Features) -> Tensor:
        r"""Mean probabilities ``[N, C]``, by the probit approximation (MacKay 1992).

        .. math:: \mathrm{softmax}\big(z_c / \sqrt{1 + \tfrac{\pi}{8} \mathrm{Var}[z_c]}\big)
        """
        variance = self.covariance(features.inputs).diagonal(dim1=-2, dim2=-1)
        return (features.logits.double() / (1 + math.pi / 8 * variance).sqrt()).softmax(dim=-1)

    def draws(self, features: Features, num_samples: int, *, seed: int = 0) -> Tensor:
        """Probabilities under draws of the weights, ``[P, N, C]``."""
        jitter = 1e-10 * torch.eye(features.logits.shape[1])
        root = torch.linalg.cholesky(self.covariance(features.inputs) + jitter)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(num_samples, *features.logits.shape, generator=generator, dtype=torch.float64)
        return (features.logits.double() + torch.einsum("nab,pnb->pna", root, noise)).softmax(dim=-1)


@dataclass(frozen=True)
class FeatureDistance:
    r"""Squared Mahalanobis distance of inputs of a last layer to the nearest class mean (Lee et al. 2018).

    .. math:: \min_c (x - \mu_c)^\top \Sigma^{-1} (x - \mu_c)

    :math:`\mu_c` are the class means of training data and :math:`\Sigma` their covariance within classes. Calling the
    object with inputs ``[N, D]`` returns the distances ``[N]``.

    Attributes:
        means: means :math:`\mu_c` of the C classes with training data, ``[C, D]``.
        precision: pseudo-inverse :math:`\Sigma^{-1}`, ``[D, D]``.
    """

    means: Tensor
    precision: Tensor

    @classmethod
    def fit(cls, features: Features) -> FeatureDistance:
        """Computes means and covariance from training data, without classes that have no example.

        Raises:
            ValueError: the data have no labels.
        """
        if features.labels is None:
            raise ValueError("FeatureDistance.fit: expected labels of the training data, got none")
        inputs, labels = features.inputs.double(), features.labels
        classes, indices = labels.unique(return_inverse=True)
        sums = inputs.new_zeros(len(classes), inputs.shape[1]).index_add_(0, indices, inputs)
        means = sums / indices.bincount()[:, None]
        within = inputs - means[indices]
        values, vectors = torch.linalg.eigh(within.T @ within / len(inputs))
        # float32, in which networks compute, rounds features of this size to what varies less
        size = inputs.square().sum(dim=-1).mean()
        mask = values > size * len(values) * torch.finfo(torch.float32).eps ** 2
        whitening = vectors[:, mask] / values[mask].sqrt()
        return cls(means, whitening @ whitening.T)

    def dumped(self) -> bytes:
        """Returns the tensors as the content of a safetensors file."""
        return save({"means": self.means, "precision": self.precision})

    @classmethod
    def loaded(cls, content: bytes) -> FeatureDistance:
        """Restores the object from the content that :meth:`dumped` returned."""
        return cls(**load(content))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Distances ``[N]`` of inputs ``[N, D]``; larger means further from the training data."""
        white, means = inputs.double() @ self._whitening, self.means @ self._whitening
        apart = torch.cdist(white, means, compute_mode="donot_use_mm_for_euclid_dist")
        return apart.amin(dim=-1).square()

    @cached_property
    def _whitening(self) -> Tensor:
        """W, ``[D, D]``, whose product with its transpose is the precision."""
        values, vectors = torch.linalg.eigh(self.precision)
        return vectors * values.clamp_min(0).sqrt()


def energy(logits: Tensor) -> Tensor:
    r"""Free energy of logits ``[N, C]``, an out-of-distribution score: larger means less like the training data.

    .. math:: -\log \sum_c \exp z_c \quad \text{(Liu et al. 2020)}

    Returns:
        Energies ``[N]`` in nats.

    Example:
        >>> energy(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
        tensor([-3.0486, -0.6931])
    """
    return -logits.logsumexp(dim=-1)
