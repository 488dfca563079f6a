"""The penalty on heads that are alike, of a host's attention call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from probattn.models.hosts.calls import AttentionCall
from probattn.models.hosts.eager import Attended, HostCall
from probattn.models.hosts.windows import as_tokens, beside_heads
from probattn.sites import AttentionMask, DisagreementFactor
from probattn.sites.repulsive import HeadProjection


@dataclass(frozen=True, eq=False)
class PenalisedCall:
    """One attention call whose heads pay: with W windows a datum in the batch, and beside the heads in ``valid``.

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
        return as_tokens(beside_heads(tensor, self.windows), self.windows)


class HeadPenalty(nn.Module):
    """The penalty on a module's heads that are alike, for ``calls`` by index; on ``projections`` where weights pay."""

    def __init__(
        self, factor: DisagreementFactor, calls: tuple[int, ...], projections: tuple[HeadProjection, ...] = ()
    ) -> None:
        super().__init__()
        self.factor = factor
        self.calls = calls
        self.projections = projections

    def announce(self, penalised: PenalisedCall) -> None:
        """Adds the factor of a call; weights of a module that is called twice pay once."""
        looks_at = self.factor.method.looks_at
        if looks_at == "parameters" and penalised.call.index != self.calls[0]:
            return
        rows = len(penalised.host.query) // penalised.windows
        self.factor.announce(penalised.call.name, rows, self._measure(penalised))

    def _measure(self, penalised: PenalisedCall) -> Callable[[], Tensor]:
        return {
            "parameters": lambda: self._of_parameters(penalised.host.module),
            "value": lambda: self._of_values(penalised),
            "output": lambda: self._of_outputs(penalised),
            "weights": lambda: self._of_weights(penalised),
        }[self.factor.method.looks_at]

    def _of_parameters(self, module: nn.Module) -> Tensor:
        weights = [projection.within(module).weights() for projection in self.projections]
        return self.factor.parameter_penalty(weights)

    def _of_values(self, penalised: PenalisedCall) -> Tensor:
        keys = None
        if penalised.valid is not None:
            keys = as_tokens(penalised.valid.key_valid, penalised.windows).any(dim=1)
        return self.factor.penalty(penalised.tokens(penalised.host.value), keys)

    def _of_outputs(self, penalised: PenalisedCall) -> Tensor:
        output, _ = penalised.undisturbed()
        return self.factor.penalty(penalised.tokens(output.transpose(1, 2)), self._queries(penalised))

    def _of_weights(self, penalised: PenalisedCall) -> Tensor:
        _, weights = penalised.undisturbed()
        if weights is None:
            raise ValueError(
                f"{penalised.call.name}: its attention function gives no weights to tell heads apart by; use the "
                "method 'outputs', 'subspaces' or 'parameters'"
            )
        return self.factor.penalty(penalised.tokens(weights), self._queries(penalised))

    def _queries(self, penalised: PenalisedCall) -> Tensor | None:
        return None if penalised.valid is None else penalised.valid.query_valid
