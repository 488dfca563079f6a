"""The factor of one attention call by which heads pay for being alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from probattn.sites.deferred import announce
from probattn.sites.disagreement import DisagreementAttention
from probattn.sites.head_penalties import (
    cosine_agreement,
    frobenius_penalty,
    parameter_agreement,
    position_agreement,
)

SUFFIX = ".disagreement"
"""What follows an attention call's name in that of its factor."""


class DisagreementFactor(nn.Module):
    r"""Adds ``-weight * penalty`` to a Pyro model's log density, one term per sample.

    Called inside the plate over the batch. Without a Pyro handler it does nothing: a network predicts as without it.
    The penalty is computed when a density is asked for.

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
        """The same with a penalty ``[B]``, or ``[]`` for all samples, that is computed when it is asked for.

        Args:
            name: of the attention call.
            rows: B.
            measure: gives the penalty.

        Raises:
            RuntimeError: training without a driver.
        """
        announce(
            name + SUFFIX,
            lambda: (-self.method.weight * measure()).expand(rows),
            torch.Size([rows]),
            training=self.training,
            what="disagreement",
        )

    def penalty(self, heads: Tensor, mask: Tensor | None = None) -> Tensor:
        """The unweighted penalty ``[B]``; arguments as for the call.

        Raises:
            ValueError: the method looks at parameters.
        """
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
        """The unweighted penalty on parameters ``[]``, summed over projections.

        Args:
            projections: the heads' weights ``[H, N]`` of each.
        """
        return torch.stack([parameter_agreement(particles) for particles in projections]).sum()
