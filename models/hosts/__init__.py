"""Hugging Face networks as hosts of attention sites: finding calls, converting, saving."""

from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.capture import CapturedCall, capture
from probattn.models.hosts.convert import convert, inspect, revert
from probattn.models.hosts.masking import HeadRedundancy, head_redundancy, masked_heads
from probattn.models.hosts.methods import place
from probattn.models.hosts.penalty import CallFactor, HostCall
from probattn.models.hosts.placing import Host, Placement, by_module
from probattn.models.hosts.pretrained import StoredNetworkError
from probattn.models.hosts.store import load, save

__all__ = [
    "AttentionCall",
    "AttentionCalls",
    "CallFactor",
    "CapturedCall",
    "HeadRedundancy",
    "Host",
    "HostCall",
    "Placement",
    "StoredNetworkError",
    "by_module",
    "capture",
    "convert",
    "head_redundancy",
    "inspect",
    "load",
    "masked_heads",
    "place",
    "revert",
    "save",
]
