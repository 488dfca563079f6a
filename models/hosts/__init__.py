"""Hugging Face networks as hosts of attention sites; the names here are those that a method of your own needs."""

from probattn.models.hosts.methods import Host, Placement, by_module, place
from probattn.models.hosts.penalty import AttendedCall, CallFactor

__all__ = ["AttendedCall", "CallFactor", "Host", "Placement", "by_module", "place"]
