"""Hugging Face networks as hosts of attention sites: finding calls, converting, saving."""

from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.capture import CapturedCall, HeadRedundancy, capture, head_redundancy, masked_heads
from probattn.models.hosts.card import describe
from probattn.models.hosts.convert import convert, inspect, revert
from probattn.models.hosts.methods import Host, Placement, by_module, place
from probattn.models.hosts.penalty import AttendedCall, CallFactor
from probattn.models.hosts.pretrained import StoredNetworkError
from probattn.models.hosts.saving import save
from probattn.models.hosts.store import from_pretrained, load

__all__ = [
    "AttendedCall",
    "AttentionCall",
    "AttentionCalls",
    "CallFactor",
    "CapturedCall",
    "HeadRedundancy",
    "Host",
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
