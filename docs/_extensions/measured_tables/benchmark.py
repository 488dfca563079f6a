"""Tables of docs/data/benchmark.json, which `make bench` writes (tests/benchmarks/attention.py)."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table

SOURCE = "make bench"
TITLES = {
    "train": "Training step",
    "expectation": "Posterior expectation",
    "undriven": "Plain forward pass of a network that used sdpa, relative to this network before conversion",
    "draws": "20 samples, relative to one eager forward pass",
    "moments": "Closed-form moments of two classes, relative to one eager forward pass",
    "site-train": "Training step, one attention call",
    "site-expectation": "Expectation, one attention call",
}
COLUMNS = ["seconds", "ratio", "quartiles", "range", "peak MiB (ratio)", "parameters added", "target"]


def tables(content: Mapping[str, Any]) -> str:
    """The setting, then a table for each kind of pass that was timed."""
    parts = [setting(content)]
    for kind, title in TITLES.items():
        rows = [_row(result) for result in content["results"] if result["kind"] == kind]
        if rows:
            parts.append(table([title, *COLUMNS], rows))
    return "\n\n".join(parts)


def setting(content: Mapping[str, Any]) -> str:
    """Sizes, rounds and machine in a sentence."""
    shape, machine = content["shape"], content["machine"]
    return (
        f"{shape['layers']} layers of {shape['hidden']}, {shape['heads']} heads, batches of {shape['batch']} x "
        f"{shape['length']}; {content['rounds']} rounds on {machine['cores']} cores, {machine['device']}, torch "
        f"{machine['torch']}; load average before the measurement: {machine['load_before']:.2f}."
    )


def _row(result: Mapping[str, Any]) -> list[str]:
    ratio, peak, added = (result[name] for name in ("ratio", "peak_mib", "parameters"))
    bars = [
        f"{what}{result[bar]}: {'met' if result[passed] else 'missed'}"
        for what, bar, passed in (("", "bar", "passed"), ("memory ", "memory_bar", "memory_passed"))
        if result[passed] is not None
    ]
    return [
        result["variant"],
        f"{result['seconds']:.3g}",
        f"**{ratio['median']:.2f}**",
        *("{:.2f} to {:.2f}".format(*ratio[name]) for name in ("quartiles", "range")),
        "" if peak is None else f"{peak:.0f} ({result['memory']:.2f})",
        "" if added is None else f"{added:.2%}",
        "; ".join(bars),
    ]
