"""Configurations of checkpoints that an earlier version wrote, in today's options."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from probattn.sites.inverse_temperature import without_inverse_temperature
from probattn.sites.particle_options import ParticleOptions
from probattn.sites.repulsive import RepulsiveAttention


def migrated_configuration(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with ``temperature`` and ``langevin`` of heads and ensembles for ``inverse_temperature``.

    Options of particles that the earlier version did not have are at their defaults, which change nothing. How torch
    computes an update (``fused``) is no part of a configuration any more. The digest
    of subwords goes: it was of sentencepiece's bytes, which every release writes otherwise.
    """
    migrated = dict(stored)
    if "optimizer" in stored:
        groups = stored["optimizer"].get("groups", {})
        plain = {name: each | ({"fused": None} if "fused" in each else {}) for name, each in groups.items()}
        migrated["optimizer"] = stored["optimizer"] | {"groups": plain}
    if "subwords" in stored.get("fingerprint", {}):
        migrated["fingerprint"] = {k: v for k, v in stored["fingerprint"].items() if k != "subwords"}
    if "ensemble" in stored:
        known = {each.name: each.default for each in fields(ParticleOptions)}
        migrated["ensemble"] = known | without_inverse_temperature(stored["ensemble"], 1)
    model = stored.get("model", {})
    if "repulsive" in model:
        rows = stored["data"].get("num_rows")  # a stream has none
        migrated["model"] = model | {
            "repulsive": {name: _heads(text, rows) for name, text in model["repulsive"].items()}
        }
    return migrated


def _heads(text: str, num_data: int | None) -> str:
    """The representation of ``RepulsiveAttention``, from that of an earlier version."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    options = {each.arg or "": ast.literal_eval(each.value) for each in call.keywords}
    return repr(RepulsiveAttention(**without_inverse_temperature(options, num_data)))
