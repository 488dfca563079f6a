"""Disagreement regularisation: a penalty on similar heads, its options and its factor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from probattn.options import NonNegative, SomeOf
from probattn.sites.handlers import announce
from probattn.sites.method import Calls, Measured, Method, Parts, RecipeKeys, check_projections
from probattn.sites.repulsive import Projection


def frobenius_penalty(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""The penalty of Lin et al. 2017 (Eq. 8) on the rows of an attention matrix.

    .. math:: P_b = \operatorname*{mean}_t \|A_{b,t} A_{b,t}^\top - I\|_F^2, \qquad A_{b,t} = w_{b,:,t,:} \in
        \mathbb R^{H \times S}

    In the paper a sentence has a single matrix A, with one row per head; here each query has such a matrix, and the
    penalty is the mean over queries. It is 0 if every head attends to a single key and no two heads to the same key.

    Args:
        weights: attention weights w, ``[B, H, T, S]``.
        mask: bool ``[B, T]``, True for real queries; None if all are real.

    Returns:
        ``[B]``, at least float32; 0 for an example without queries.

    Raises:
        TypeError: the mask is not bool, or the weights are not floating-point.
        ValueError: shapes do not fit.

    Example:
        >>> frobenius_penalty(torch.eye(3)[None, :, None, :])  # three heads, each with a key of its own
        tensor([0.])
        >>> frobenius_penalty(torch.tensor([[[[1.0, 0.0]], [[1.0, 0.0]]]]))
        tensor([2.])
    """
    weights = _checked("frobenius_penalty", weights)
    with torch.autocast(weights.device.type, enabled=False):
        rows = weights.transpose(1, 2)  # [B, T, H, S]
        products = rows @ rows.transpose(-1, -2)
        excess = products - torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
        return _token_mean("frobenius_penalty", excess.square().sum(dim=(-1, -2)), mask)


def position_agreement(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Overlap of the heads' attention over keys: minus the disagreement of Li et al. 2018 (Eq. 8).

    .. math:: -D_b^{\mathrm{pos}} = \operatorname*{mean}_t \frac{1}{H^2} \sum_{i,j=1}^H \sum_s w_{b,i,t,s} w_{b,j,t,s}

    The terms i = j, which the paper has too, are smaller if a head attends to several keys. The sum over queries of the
    paper is a mean here, so long texts do not weigh more. Arguments and errors are those of :func:`frobenius_penalty`.

    Returns:
        ``[B]``, at least float32, between 0 and 1.

    Example:
        >>> position_agreement(torch.eye(2)[None, :, None, :])
        tensor([0.5000])
    """
    weights = _checked("position_agreement", weights)
    # the double sum over heads is the square of their sum
    return _token_mean("position_agreement", weights.mean(dim=1).square().sum(dim=-1), mask)


def cosine_agreement(vectors: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""The mean cosine between heads: minus the disagreement of Li et al. 2018 on values (Eq. 7) or outputs (Eq. 9).

    .. math:: -D_b = \operatorname*{mean}_t \frac{1}{H^2} \sum_{i,j=1}^H
        \frac{x_{b,i,t} \cdot x_{b,j,t}}{\|x_{b,i,t}\| \|x_{b,j,t}\|}

    with x, ``vectors`` ``[B, H, T, E]``, the heads' values (the paper's "subspaces") or outputs at token t. A vector of
    norm 0 has cosine 0 with all. ``mask`` and errors are those of :func:`frobenius_penalty`.

    Returns:
        ``[B]``, at least float32, between 0 and 1.

    Example:
        >>> cosine_agreement(torch.eye(2)[None, :, None, :])
        tensor([0.5000])
    """
    vectors = _checked("cosine_agreement", vectors)
    directions = torch.nn.functional.normalize(vectors, dim=-1)
    return _token_mean("cosine_agreement", directions.mean(dim=1).square().sum(dim=-1), mask)


def parameter_agreement(particles: Tensor) -> Tensor:
    r"""Similarity of the heads of a projection: the cosine penalty on parameters (An et al. 2020, section C.6).

    .. math:: \frac{1}{2 H} \sum_{i,j=1}^H \frac{\theta_i \cdot \theta_j}{\|\theta_i\| \|\theta_j\|}

    Its gradient in :math:`\theta_i` is :math:`\frac1H \sum_j \nabla_{\theta_i} \cos(\theta_i, \theta_j)`, the second
    term of the first update in that section, but with the opposite sign: as printed, the update makes heads similar.

    Args:
        particles: each head's weights in the projection as a row, ``[H, N]``. A row of norm 0 has cosine 0 with all.

    Returns:
        ``[]``, at least float32, between 0 and H / 2.

    Raises:
        TypeError: the particles are not floating-point.
        ValueError: ``particles`` is not a matrix.

    Example:
        >>> parameter_agreement(torch.eye(2))
        tensor(0.5000)
    """
    if particles.dim() != 2:
        raise ValueError(f"parameter_agreement: expected particles [H, N], got {list(particles.shape)}")
    particles = _floating("parameter_agreement", particles)
    directions = torch.nn.functional.normalize(particles, dim=-1)
    return directions.sum(dim=0).square().sum() / (2 * len(particles))


def _checked(owner: str, tensor: Tensor) -> Tensor:
    if tensor.dim() != 4:
        raise ValueError(
            f"{owner}: expected a tensor [B, H, T, ...] of four dimensions, got {list(tensor.shape)}"
        )
    return _floating(owner, tensor)


def _floating(owner: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        raise TypeError(f"{owner}: expected floating-point numbers, got {tensor.dtype}")
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _token_mean(owner: str, values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean ``[B]`` of values ``[B, T]`` over the tokens that count."""
    if mask is None:
        return values.sum(dim=-1) / max(values.shape[1], 1)
    if mask.dtype != torch.bool:
        raise TypeError(f"{owner}: expected a bool mask (True = counts), got {mask.dtype}")
    if mask.shape != values.shape:
        raise ValueError(f"{owner}: expected a mask {list(values.shape)}, got {list(mask.shape)}")
    # zeroed before the sum: values at padding need not be finite
    valid_values = values.masked_fill(~mask, 0.0)
    return valid_values.sum(dim=-1) / mask.sum(dim=-1).clamp_min(1)


DisagreementMethod = Literal["frobenius", "subspaces", "positions", "outputs", "parameters"]
OWNER = "DisagreementAttention"
SUFFIX = ".disagreement"  # suffix of an attention call's name in that of its factor
Penalised = Literal["weights", "value", "output"]
_PENALTIES: dict[str, tuple[Penalised, Callable[[Tensor, Tensor | None], Tensor]]] = {
    "frobenius": ("weights", frobenius_penalty),
    "positions": ("weights", position_agreement),
    "subspaces": ("value", cosine_agreement),
    "outputs": ("output", cosine_agreement),
}


@dataclass(frozen=True)
class DisagreementAttention(Method):
    r"""Attention with a penalty on heads that are similar, for comparison with repulsive attention.

    .. math:: \log p(y \mid x) - w \sum_{\text{sites}} P

    with a penalty P for one example and attention call:

    - "frobenius": :func:`frobenius_penalty`, the mean of :math:`\|A A^\top - I\|_F^2` (Lin et al. 2017, Eq. 8);
    - "subspaces", "outputs": :func:`cosine_agreement`, the mean cosine between the heads' values or between their
      outputs (Li et al. 2018, Eq. 7 and 9);
    - "positions": :func:`position_agreement`, the mean product of the heads' attention weights (Eq. 8);
    - "parameters": the sum of cosines between the heads' weights in the projections (An et al. 2020, section C.6), see
      :func:`parameter_agreement`; all examples get the same penalty. It is the first of three steps from a penalty to
      repulsion in their Table 9; the others are ``RepulsiveAttention(kernel="cosine", smoothing=False)`` and
      ``RepulsiveAttention(kernel="cosine", offset=0.0)``.

    Each attention call NAME adds the Pyro factor ``NAME.disagreement``, with one term per example. Attention weights
    are penalised before attention dropout, latent ones as sampled. At weight 0 the network trains as without the
    penalty, bit for bit.

    Args:
        method: what is penalised: deviation of the heads' attention vectors from orthonormality ("frobenius"), or
            similarity of the heads' values ("subspaces"), attention weights ("positions"), outputs ("outputs") or
            projection weights ("parameters").
        weight: weight w of the penalty in the objective, >= 0; Li et al. 2018 use 1.
        projections: for "parameters": projections whose weights are compared between heads.
        layers: layers of each stack whose heads are penalised; numbers count from 0, negative ones from the end; or the
            calls of the "encoder", of the "decoder" (its self-attention) or the "cross" attention; None leaves it
            to ``convert``.
        attention: kind of attention calls whose heads are penalised; None leaves it to ``convert``.

    Raises:
        ValueError: an option is outside its range.

    Example:
        >>> DisagreementAttention("outputs", weight=1.0, layers="last").looks_at
        'output'
    """

    kind: ClassVar[str] = "disagreement"
    section: ClassVar[str] = "disagreement"
    key: ClassVar[str] = "regularised"
    recipe: ClassVar[RecipeKeys] = RecipeKeys(
        "The penalty on similar attention heads in training; null for none."
    )
    summarised: ClassVar[tuple[str, ...]] = ("method", "weight")
    measured: ClassVar[tuple[Measured, ...]] = ("heads",)

    method: DisagreementMethod = "outputs"
    weight: NonNegative = 0.1
    projections: SomeOf[Projection] = ("query", "key", "value")
    layers: Parts | None = None
    attention: Calls | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "projections", check_projections(OWNER, self.projections, Projection))
        super().__post_init__()

    def summary(self) -> str:
        """The penalised quantity and the weight, such as "penalty on heads alike (outputs), weight 0.1"."""
        return f"penalty on heads alike ({self.method}), weight {self.weight:g}"

    @property
    def looks_at(self) -> Penalised | Literal["parameters"]:
        """The penalised tensor of an attention call: "weights", "value", "output" or "parameters"."""
        return "parameters" if self.method == "parameters" else _PENALTIES[self.method][0]

    def build(self) -> DisagreementFactor:
        """Makes the factor of one attention call, to be called with a name and the penalised tensor in a Pyro model."""
        return DisagreementFactor(self)


class DisagreementFactor(nn.Module):
    r"""Adds ``-weight * penalty`` to a Pyro model's log density, one term per example of a batch.

    Call the module inside the plate over the batch. Outside Pyro's handlers, in prediction, it does nothing. The
    penalty is computed only when the log density is requested.

    Example:
        >>> import pyro
        >>> from pyro import poutine
        >>> differ = DisagreementAttention("positions", weight=1.0).build()
        >>> def model(weights):
        ...     with pyro.plate("data", len(weights)):
        ...         differ("attend", weights)
        >>> trace = poutine.trace(model).get_trace(torch.eye(2).expand(3, 2, 2).unsqueeze(2))
        >>> trace.compute_log_prob()
        >>> trace.nodes["attend.disagreement"]["log_prob"]
        tensor([-0.5000, -0.5000, -0.5000])
    """

    def __init__(self, method: DisagreementAttention) -> None:
        super().__init__()
        self.method = method

    def extra_repr(self) -> str:
        """The options, for ``print(network)``."""
        return str(self.method)

    def forward(self, name: str, heads: Tensor, mask: Tensor | None = None) -> None:
        """Registers the factor ``name + ".disagreement"``, ``[B]``, with Pyro.

        Args:
            name: name of the attention call.
            heads: the penalised tensor: attention weights ``[B, H, T, S]``, or values or outputs ``[B, H, T, E]``.
            mask: bool ``[B, T]``, True for real tokens; None if all are real.

        Raises:
            RuntimeError: in training mode with gradients, outside Pyro's handlers (no guide, SVI or driver is active).
        """
        self.announce(name, len(heads), lambda: self.penalty(heads, mask))

    def announce(self, name: str, rows: int, measure: Callable[[], Tensor]) -> None:
        """Registers the factor like a call; ``measure`` computes the penalty, ``[rows]`` or ``[]``, on demand."""
        announce(
            name + SUFFIX,
            lambda: (-self.method.weight * measure()).expand(rows),
            torch.Size([rows]),
            training=self.training,
            what="disagreement",
        )

    def penalty(self, heads: Tensor, mask: Tensor | None = None) -> Tensor:
        """The unweighted penalty ``[B]``; arguments as in a call. ``ValueError`` for the method "parameters"."""
        if self.method.method == "parameters":
            raise ValueError(
                "DisagreementFactor.penalty: the method 'parameters' looks at weights of projections"
            )
        return _PENALTIES[self.method.method][1](heads, mask)

    def parameter_penalty(self, projections: Sequence[Tensor]) -> Tensor:
        """The unweighted penalty ``[]`` of the method "parameters": the sum over projections, each ``[H, N]``."""
        return torch.stack([parameter_agreement(particles) for particles in projections]).sum()
