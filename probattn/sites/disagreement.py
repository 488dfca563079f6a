"""Disagreement regularisation: a penalty on similar heads, its options and its factor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from probattn.options import NonNegative, SomeOf
from probattn.sites.checks import check_parts
from probattn.sites.deferred import announce
from probattn.sites.head_penalties import (
    cosine_agreement,
    frobenius_penalty,
    parameter_agreement,
    position_agreement,
)
from probattn.sites.method import Calls, Measured, Method, Parts, RecipeKeys
from probattn.sites.repulsive import Projection

DisagreementMethod = Literal["frobenius", "subspaces", "positions", "outputs", "parameters"]
OWNER = "DisagreementAttention"
SUFFIX = ".disagreement"
"""Suffix of an attention call's name in that of its factor."""


@dataclass(frozen=True)
class DisagreementAttention(Method):
    r"""Attention whose heads are penalised for similarity: the penalties that repulsive attention is compared with.

    .. math:: \log p(y \mid x) - w \sum_{\text{sites}} P

    with a penalty P of one sample and attention call, in :mod:`probattn.sites.head_penalties`:

    - "frobenius": :math:`\|A A^\top - I\|_F^2`, A the heads' weights of one query, mean over queries (Lin et al. 2017,
      Eq. 8);
    - "subspaces", "positions", "outputs": minus the disagreement of Li et al. 2018 (Eq. 7, 8, 9), the mean over pairs
      of heads of the cosine between values, of the product of attention weights, of the cosine between outputs;
    - "parameters": the same on the heads' slices of the projections (An et al. 2020, section C.6), the first of the
      three steps of their Table 9. It knows no samples: every one gets the same. The other two steps are
      ``RepulsiveAttention(kernel="cosine", smoothing=False)`` and, under a driver with
      ``kernel=CosineKernel(offset=0.0)``, ``RepulsiveAttention()``.

    Each attention call adds the Pyro factor ``site.disagreement``, one term per sample; the attention itself stays what
    it was. Attention dropout is left out of what is penalised; latent weights are penalised as drawn. At weight 0
    the network trains as without it, bit for bit.

    Args:
        method: what is penalised: "frobenius" (attention weights that are no orthonormal rows), or likeness of heads by
            their values ("subspaces"), attention weights ("positions"), "outputs" or projection weights ("parameters").
        weight: weight w of the penalty in the objective, >= 0. Li et al. 2018 take 1.
        projections: of "parameters": weights whose heads pay.
        layers: layers of each stack whose heads pay; numbers count from 0, negative ones from the end; or the calls of
            the "encoder", of the "decoder" (its self-attention) or the "cross" attention; None leaves it to
            ``convert``.
        attention: kind of attention calls whose heads pay; None leaves it to ``convert``.

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
        "The penalty on similar heads in training, besides the other sections; null for none."
    )
    summarised: ClassVar[tuple[str, ...]] = ("method", "weight")
    measured: ClassVar[tuple[Measured, ...]] = ("heads",)

    method: DisagreementMethod = "outputs"
    weight: NonNegative = 0.1
    projections: SomeOf[Projection] = ("query", "key", "value")
    layers: Parts | None = None
    attention: Calls | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "projections", check_parts(OWNER, self.projections, Projection))
        super().__post_init__()

    def summary(self) -> str:
        """The penalised quantity and the weight."""
        return f"penalty on heads alike ({self.method}), weight {self.weight:g}"

    @property
    def looks_at(self) -> Literal["weights", "value", "output", "parameters"]:
        """The penalised part of an attention call."""
        if self.method in ("frobenius", "positions"):
            return "weights"
        if self.method == "parameters":
            return "parameters"
        return "value" if self.method == "subspaces" else "output"

    def build(self) -> DisagreementFactor:
        """Makes the factor of one attention call, to be called with a name and the penalised tensor in a Pyro model."""
        return DisagreementFactor(self)


class DisagreementFactor(nn.Module):
    r"""Adds ``-weight * penalty`` to a Pyro model's log density, one term per sample.

    Called inside the plate over the batch. Without a Pyro handler it does nothing: a network predicts as without it.
    The penalty is computed when a density is requested.

    Args:
        method: the options.

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
        """Announces the factor ``name + ".disagreement"``, ``[B]``.

        Args:
            name: of the attention call.
            heads: what the method looks at: attention weights ``[B, H, T, S]``, values or outputs ``[B, H, T, E]``.
            mask: bool ``[B, T]``, True for tokens that count; None for all.

        Raises:
            RuntimeError: training without a driver.
        """
        self.announce(name, len(heads), lambda: self.penalty(heads, mask))

    def announce(self, name: str, rows: int, measure: Callable[[], Tensor]) -> None:
        """As the call, with a penalty ``[B]`` of B ``rows``, or ``[]``, that ``measure`` computes on demand."""
        announce(
            name + SUFFIX,
            lambda: (-self.method.weight * measure()).expand(rows),
            torch.Size([rows]),
            training=self.training,
            what="disagreement",
        )

    def penalty(self, heads: Tensor, mask: Tensor | None = None) -> Tensor:
        """The unweighted penalty ``[B]``; arguments as for the call. ``ValueError`` for a method on parameters."""
        if self.method.method == "frobenius":
            return frobenius_penalty(heads, mask)
        if self.method.method == "positions":
            return position_agreement(heads, mask)
        if self.method.method == "parameters":
            raise ValueError(
                "DisagreementFactor.penalty: the method 'parameters' looks at weights of projections"
            )
        return cosine_agreement(heads, mask)

    def parameter_penalty(self, projections: Sequence[Tensor]) -> Tensor:
        """The unweighted penalty on parameters ``[]``, summed over projections with heads' weights ``[H, N]``."""
        return torch.stack([parameter_agreement(particles) for particles in projections]).sum()
