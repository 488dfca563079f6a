"""Hugging Face networks as hosts of attention sites: finding calls, converting, saving."""

from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.capture import CapturedCall, HeadRedundancy, capture, head_redundancy, masked_heads
from probattn.models.hosts.convert import convert, inspect, particle, revert
from probattn.models.hosts.description import describe
from probattn.models.hosts.methods import AttendedCall, CallFactor, Host, Placement, by_module, place
from probattn.models.hosts.pretrained import StoredNetworkError
from probattn.models.hosts.saving import save
from probattn.models.hosts.store import from_pretrained, load

__all__ = ["AttentionCall", "AttentionCalls"]
__all__ += ["CapturedCall", "HeadRedundancy", "capture", "head_redundancy", "masked_heads"]
__all__ += ["convert", "inspect", "particle", "revert", "describe"]
__all__ += ["AttendedCall", "CallFactor", "Host", "Placement", "by_module", "place", "StoredNetworkError"]
__all__ += ["save", "from_pretrained", "load"]
