"""The record of a conversion, which a converted network carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn
from torch.utils.hooks import RemovableHandle

from probattn.models.hosts.calls import AttentionCalls
from probattn.models.hosts.hosting import Plan
from probattn.models.hosts.selection import Kind, Layers, Part
from probattn.models.hosts.undriven import Implementations
from probattn.sites import AlignmentAttention, BayesianAttention, DisagreementAttention, Method
from probattn.sites.repulsive import RepulsiveAttention

Asked = TypeVar("Asked", bound=Method)
RECORD = "_probattn_conversion"


@dataclass(eq=False)
class Conversion:
    """Record of :func:`convert`, kept on the network for :func:`revert` and for saving.

    Attributes:
        plan: the methods, and which calls became what.
        layers: the requested layers.
        attention: the requested kinds.
        before: configurations with their former attention implementation.
        hooks: handles of the hooks added.
        attributes: names of the attributes added to the network.
    """

    plan: Plan
    layers: Layers | Part
    attention: Kind
    before: Implementations
    hooks: list[RemovableHandle]
    attributes: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[Method, ...]:
        """All methods, in order of precedence."""
        return tuple(placed.method for placed in self.plan.placed.values())

    def of(self, kind: type[Asked]) -> Asked | None:
        """The options of a method, by their class; None without it."""
        return self.plan.of(kind)

    @property
    def method(self) -> BayesianAttention | None:
        """The options of latent attention; None where all attention is deterministic."""
        return self.of(BayesianAttention)

    @property
    def alignment(self) -> AlignmentAttention | None:
        """The options of alignment; None without it."""
        return self.of(AlignmentAttention)

    @property
    def repulsive(self) -> RepulsiveAttention | None:
        """The options of repulsive heads; None without them."""
        return self.of(RepulsiveAttention)

    @property
    def disagreement(self) -> DisagreementAttention | None:
        """The options of the penalty on similar heads; None without it."""
        return self.of(DisagreementAttention)

    @property
    def calls(self) -> AttentionCalls:
        """The calls made latent."""
        return self.plan.calls_of(BayesianAttention)


def host_of(net: Any) -> Any:
    """The network that a wrapper of the PEFT library has inside; any other network itself."""
    inner = getattr(type(net), "get_base_model", None)
    return net if inner is None else inner(net)


def conversion(net: nn.Module) -> Conversion | None:
    """The record of a network's conversion, or of the network inside a wrapper of PEFT; None without one."""
    record: Conversion | None = vars(host_of(net)).get(RECORD)
    return record
