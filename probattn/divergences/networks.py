"""The small networks of alignment: highway, discriminator, critic and navigator."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from probattn.checks import check_choice, check_integer

DiscriminatorKind = Literal["highway", "mlp", "release"]
LEAK = 0.01  # slope of the leaky ReLU below 0; the paper gives none


def _checked(owner: str, x: Tensor, layer: nn.Linear) -> Tensor:
    if x.shape[-1] != layer.in_features:
        raise ValueError(f"{owner}: expected vectors of size {layer.in_features}, got {x.shape[-1]}")
    if x.dtype != layer.weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"{owner}: expected a network in {x.dtype}, the type of the vectors (divergences are computed in float32 "
            f"or float64), got {layer.weight.dtype}; call its method to({x.dtype})"
        )
    return x


def _linear(inputs: int, outputs: int, generator: Generator | None) -> nn.Linear:
    """A linear layer with torch's default distribution, drawn from ``generator`` alone."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    bound = 1 / math.sqrt(inputs)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


class Highway(nn.Module):
    r"""A highway layer with linear maps :math:`\Phi` (Srivastava et al. 2015; Zhang et al. 2021b, section 2.3.1).

    .. math:: I_x = \tau \odot \mathrm{ReLU}(\Phi_h(x)) + (1 - \tau) \odot x, \qquad \tau = \sigma(\Phi_\tau(x)).

    Args:
        size: D, the size of input and output.
        generator: source of the initial weights; torch's global one by default.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> Highway(4)(torch.ones(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(self, size: int, *, generator: Generator | None = None) -> None:
        super().__init__()
        check_integer("Highway", "size", size, minimum=1)
        self.maps = _linear(size, 2 * size, generator)  # both maps in one product

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[..., D]`` to ``[..., D]``; another last dimension raises ``ValueError``."""
        gate, value = self.maps(_checked("Highway", x, self.maps)).chunk(2, dim=-1)
        return torch.lerp(x, torch.relu(value), torch.sigmoid(gate))


class ReleaseHighway(nn.Module):
    r"""The highway of the authors' code, with one map: :math:`\tau \odot \mathrm{ReLU}(z) + (1 - \tau) \odot x`.

    Here :math:`z = \Phi(x)` and :math:`\tau = \sigma(z)`; arguments are those of :class:`Highway`.
    """

    def __init__(self, size: int, *, generator: Generator | None = None) -> None:
        super().__init__()
        self.map = _linear(size, size, generator)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., D]``."""
        value = self.map(x)
        return torch.lerp(x, torch.relu(value), torch.sigmoid(value))


class _TwoLayers(nn.Module):
    """Two linear layers, leaky behind a highway and plain without, or behind that of the authors' code."""

    _highway: type[nn.Module] | None  # None: a module without one has none in its description either

    def __init__(
        self,
        head_dim: int,
        hidden: int | None = None,
        output: int | None = None,
        *,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        for name, number in (("head_dim", head_dim), ("hidden", hidden), ("output", output)):
            if number is not None:
                check_integer(type(self).__name__, name, number, minimum=1)
        width, size = (head_dim if number is None else number for number in (hidden, output))
        if self._highway is not None:
            self.highway = self._highway(head_dim, generator=generator)
        self.hidden = _linear(head_dim, width, generator)
        self.output = _linear(width, size, generator)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., output]``."""
        before = getattr(self, "highway", None)
        checked = _checked(type(self).__name__, x, self.hidden)
        hidden = self.hidden(checked if before is None else before(checked))
        return self.output(F.leaky_relu(hidden, LEAK) if isinstance(before, Highway) else torch.relu(hidden))


class Discriminator(_TwoLayers):
    r"""Discriminator between queries and keys; returns the logit of D(x), the probability that x is a query.

    .. math:: D(x) = \sigma(\Phi_2(\mathrm{LeakyReLU}(\Phi_1(I_x))))

    with linear layers :math:`\Phi` and the highway :math:`I_x` of :class:`Highway` (Zhang et al. 2021b, section 2.3.1;
    the slope of the LeakyReLU, 0.01, is not in the paper). All heads of a layer share one discriminator.

    Args:
        head_dim: D, the size of a head.
        hidden: width of the hidden layer; D by default.
        kind: "highway"; "mlp", :math:`\sigma(\Phi_2(\mathrm{ReLU}(\Phi_1(x))))` (section B.1.2); "release",
            as in the authors' code, with ReLU and a highway in which :math:`\Phi_h = \Phi_\tau`.
        generator: source of the initial weights; torch's global one by default.

    Raises:
        ValueError: an unknown kind, or ``head_dim`` or ``hidden`` below 1.

    Example:
        >>> Discriminator(8)(torch.randn(2, 4, 5, 8)).shape
        torch.Size([2, 4, 5])
    """

    def __init__(
        self,
        head_dim: int,
        hidden: int | None = None,
        *,
        kind: DiscriminatorKind = "highway",
        generator: Generator | None = None,
    ) -> None:
        check_choice("Discriminator", "kind", kind, DiscriminatorKind)
        self._highway = {"highway": Highway, "mlp": nn.Identity, "release": ReleaseHighway}[kind]
        super().__init__(head_dim, hidden, 1, generator=generator)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[..., D]`` to logits ``[...]``; another last dimension raises ``ValueError``."""
        return super().forward(x).squeeze(-1)


class Critic(_TwoLayers):
    r"""Maps queries and keys ``[..., D]`` to vectors whose cosine gives the cost in :func:`conditional_transport`.

    .. math:: \tau_\eta(x) = \Phi_2(\mathrm{LeakyReLU}(\Phi_1(I_x)))

    with the highway :math:`I_x` of :class:`Highway` (Zhang et al. 2021b, section 2.3.3). ``output`` is the size of the
    vectors, D by default; the other arguments and errors are those of :class:`Discriminator`.

    Example:
        >>> Critic(8)(torch.randn(2, 4, 5, 8)).shape
        torch.Size([2, 4, 5, 8])
    """

    _highway: type[nn.Module] | None = Highway


class Navigator(_TwoLayers):
    r"""Maps queries and keys ``[..., D]`` to vectors whose products give the plans of :func:`conditional_transport`.

    .. math:: \tau_\phi(x) = \Phi_2(\mathrm{ReLU}(\Phi_1(x)))

    (Zhang et al. 2021b, section 2.3.3). ``output`` is the size of the vectors, D by default; the other arguments and
    errors are those of :class:`Discriminator`.

    Example:
        >>> Navigator(8)(torch.randn(2, 4, 5, 8)).shape
        torch.Size([2, 4, 5, 8])
    """

    _highway = None
