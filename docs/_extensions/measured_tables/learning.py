"""Tables of docs/data/learning.json, which `make bench` writes (tests/benchmarks/learning.py)."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table

SOURCE = "make bench"
TITLES = {"batched": "one batched program on all cores", "cores": "a part on each core, at best"}


def tables(content: Mapping[str, Any]) -> str:
    """Many small models at once, and IBM Model 1 where it was timed."""
    runs, machine = content["many_runs"], content["machine"]
    setting = (
        f"{runs['runs']} models of width {runs['width']}; {content['rounds']} rounds on {machine['cores']} cores, "
        f"torch {machine['torch']}, load {machine['load_before']:.2f} before."
    )
    rows = [
        [
            TITLES[name],
            f"{row['seconds']:.3g}",
            f"**{row['ratio']['median']:.2f}**",
            "{:.2f} to {:.2f}".format(*row["ratio"]["quartiles"]),
        ]
        for name, row in runs["variants"].items()
    ]
    parts = [setting, table(["An update of all", "seconds", "ratio", "quartiles"], rows)]
    model = content["ibm_model1"]
    if model is not None:
        verdict = "met" if model["passed"] else "missed"
        cells = [
            f"{model['pairs']:,}",
            str(model["steps"]),
            f"**{model['seconds']:.1f}**",
            f"{model['bar']:.0f}: {verdict}",
        ]
        parts.append(table(["IBM Model 1, pairs", "steps", "seconds", "bar"], [cells]))
    return "\n\n".join(parts)
