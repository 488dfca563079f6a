"""Tables of docs/data/learning.json, which `make bench` writes (tests/benchmarks/learning.py)."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table

SOURCE = "make bench"
TITLES = {
    "batched": "one batched program on all cores",
    "cores": "a part on each core, at best",
    "padded": "padding read too",
    "packed": "packed sequences",
}


def tables(content: Mapping[str, Any]) -> str:
    """Many small models at once, padded texts, and IBM Model 1 where it was timed."""
    runs, texts, machine = content["many_runs"], content["padded_texts"], content["machine"]
    setting = (
        f"{runs['runs']} models of width {runs['width']}; {texts['texts']} texts of {texts['words'] // 2} to "
        f"{texts['words']} words, two directions of {texts['units']} units; {content['rounds']} rounds on "
        f"{machine['cores']} cores, torch {machine['torch']}, load {machine['load_before']:.2f} before."
    )
    parts = [setting, _ratios("An update of all", runs), _ratios("A gradient of the LSTM", texts)]
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


def _ratios(title: str, found: Mapping[str, Any]) -> str:
    rows = [
        [
            TITLES[name],
            f"{row['seconds']:.3g}",
            f"**{row['ratio']['median']:.2f}**",
            "{:.2f} to {:.2f}".format(*row["ratio"]["quartiles"]),
        ]
        for name, row in found["variants"].items()
    ]
    return table([title, "seconds", "ratio", "quartiles"], rows)
