"""Factors of a host's attention call that has attended, such as the penalty on similar heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from probattn.models.hosts.calls import AttentionCall
from probattn.models.hosts.eager import Attended, HostCall
from probattn.models.hosts.masks import as_tokens, windows_to_heads
from probattn.sites import AttentionMask, DisagreementFactor
from probattn.sites.repulsive import HeadProjection


@dataclass(frozen=True, eq=False)
class AttendedCall:
    """One attention call with its output: W windows a datum in the batch, next to the heads in ``valid``.

    ``latent``: whether the weights were drawn, or stand for draws.
    """

    call: AttentionCall
    host: HostCall
    attended: Attended
    valid: AttentionMask | None
    windows: int
    latent: bool

    def undisturbed(self) -> Attended:
        """Output and weights without the attention dropout of the host; latent weights as drawn."""
        if self.latent or not self.host.module.training or not self.host.options.get("dropout"):
            return self.attended
        return self.host.eager(dropout=0.0)

    def tokens(self, tensor: Tensor) -> Tensor:
        """``[B * W, H, T, ...]`` as ``[B, H, W * T, ...]``: a datum's windows one after the other."""
        return as_tokens(windows_to_heads(tensor, self.windows), self.windows)


class CallFactor(nn.Module, ABC):
    """Submodule that adds a factor to a Pyro model for each call that has attended.

    Args:
        calls: the module's calls that it concerns, by index.
    """

    def __init__(self, calls: tuple[int, ...]) -> None:
        super().__init__()
        self.calls = calls

    @abstractmethod
    def announce(self, attended: AttendedCall) -> None:
        """Announces the factor of a call.

        Raises:
            RuntimeError: training without a driver.
        """


class CallFactors(CallFactor):
    """Several factors of one attention module, by name."""

    def __init__(self, factors: Mapping[str, CallFactor]) -> None:
        super().__init__(tuple(sorted({index for factor in factors.values() for index in factor.calls})))
        self.factors = nn.ModuleDict(factors)

    def announce(self, attended: AttendedCall) -> None:
        """Announces the factors that concern a call."""
        for factor in self.factors.values():
            if isinstance(factor, CallFactor) and attended.call.index in factor.calls:
                factor.announce(attended)


class HeadPenalty(CallFactor):
    """Penalty on similar heads, for the module's ``calls`` by index; ``projections`` holds the weights it compares."""

    def __init__(
        self, factor: DisagreementFactor, calls: tuple[int, ...], projections: tuple[HeadProjection, ...] = ()
    ) -> None:
        super().__init__(calls)
        self.factor = factor
        self.projections = projections

    def announce(self, attended: AttendedCall) -> None:
        """Announces the factor of a call; weights of a module that is called twice pay once."""
        looks_at = self.factor.method.looks_at
        if looks_at == "parameters" and attended.call.index != self.calls[0]:
            return
        rows = len(attended.host.query) // attended.windows
        self.factor.announce(attended.call.name, rows, lambda: self._penalty(attended))

    def _penalty(self, attended: AttendedCall) -> Tensor:
        looks_at, valid = self.factor.method.looks_at, attended.valid
        if looks_at == "parameters":
            module = attended.host.module
            return self.factor.parameter_penalty([item.within(module).weights() for item in self.projections])
        if looks_at == "value":
            keys = None if valid is None else as_tokens(valid.key_valid, attended.windows).any(dim=1)
            return self.factor.penalty(attended.tokens(attended.host.value), keys)
        output, weights = attended.undisturbed()
        compared = output.transpose(1, 2) if looks_at == "output" else weights
        if compared is None:
            raise ValueError(
                f"{attended.call.name}: its attention function gives no weights to tell heads apart by; use the method "
                "'outputs', 'subspaces' or 'parameters'"
            )
        return self.factor.penalty(attended.tokens(compared), None if valid is None else valid.query_valid)
