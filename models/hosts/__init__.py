"""Hugging Face networks as hosts of attention sites: finding calls, converting, saving."""

from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.capture import CapturedCall, capture
from probattn.models.hosts.card import describe
from probattn.models.hosts.convert import convert, inspect, revert
from probattn.models.hosts.masking import HeadRedundancy, head_redundancy, masked_heads
from probattn.models.hosts.methods import place
from probattn.models.hosts.penalty import AttendedCall, CallFactor
from probattn.models.hosts.placing import Host, Placement, by_module
from probattn.models.hosts.pretrained import StoredNetworkError
from probattn.models.hosts.saving import save
from probattn.models.hosts.store import from_pretrained, load

__all__ = [
    "AttentionCall",
    "AttentionCalls",
    "CallFactor",
    "CapturedCall",
    "HeadRedundancy",
    "Host",
    "AttendedCall",
    "Placement",
    "StoredNetworkError",
    "by_module",
    "capture",
    "convert",
    "describe",
    "from_pretrained",
    "head_redundancy",
    "inspect",
    "load",
    "masked_heads",
    "place",
    "revert",
    "save",
]
