"""The tables of docs/data/visual_questions.json, which `tests/benchmarks/study.py mcan` writes, beside the papers'."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "python tests/benchmarks/study.py mcan runs/mcan --seeds 3"
FIGURES = ("accuracy", "accuracy_noisy", "pavpu", "pavpu_noisy")
COLUMNS = ("accuracy", "accuracy, noisy", "PAvPU", "PAvPU, noisy")
METHODS = {
    "soft": ("soft", "66.74, 63.58, 71.96, 68.29"),
    "bam": ("BAM", "66.82, 63.98, 72.01, 68.58"),
    "babn": ("BABN", "66.92, 64.40, 72.21, 70.43"),
    "gan": ("aligned, GAN", "66.92, 64.28, 72.17, 69.80"),
    "ct": ("aligned, CT", "67.01, 64.57, 72.21, 69.98"),
    "repulsive": ("repulsive heads", "-"),
}
UPWARD = {
    "no_rho": ("rho 0, sigma 1e-6", "44.62, 32.16, 50.93, 53.22"),
    "no_sigma": ("rho 1.5, sigma 0", "66.78, 64.04, 69.99, 69.02"),
    "upward": ("rho 1.5, sigma 1e-6", "66.92, 64.40, 72.21, 70.43"),
}
WEIGHTS = {
    "weight_1": ("CT, weight 1", "66.98, 64.55, 72.15, 69.95"),
    "weight_0.1": ("CT, weight 0.1", "67.00, 64.54, 72.18, 69.93"),
    "ct": ("CT, weight 0.01", "67.01, 64.57, 72.21, 69.98"),
}
"""Name of a variant, and the papers' figures on VQA-v2 in the order of the columns."""
TABLES = (
    ("", METHODS),
    ("Without parts of the upward path (Zhang et al. 2021, table 8):", UPWARD),
    ("By the weight of the alignment (NeurIPS 2021, table 9):", WEIGHTS),
)


def tables(content: Mapping[str, Any]) -> str:
    """The methods, the upward path and the weight of the alignment, as far as they were run with all seeds."""
    runs = content["runs"]
    counts = Counter(run["variant"] for run in runs)
    most = max(counts.values())
    summary = {name: found for name, found in content["summary"].items() if counts[name] == most}
    sizes = runs[0]["questions"]
    number = f"{most} seeds" if most > 1 else "one seed"
    words = (
        f"`{content['setting']['recipe']}`, {number}; {sizes['training']:,} questions to train on, {sizes['test']:,} "
        f"to measure on, noise of variance {sizes['noise']:g}. Percent: mean over seeds and its 95% interval "
        "(Student's t). The papers' figures, in the order of the columns, are of VQA-v2, with noise of variance 5 for "
        "BAM and BABN and 1 for alignment: they name the row, and are not comparable."
    )
    parts = [words]
    for heading, variants in TABLES:
        rows = list(_rows(summary, variants))
        if rows and (not heading or len(rows) > 1 or variants is UPWARD):
            parts += [heading] if heading else []
            parts.append(table(["attention", *COLUMNS, "papers"], rows))
    return "\n\n".join(parts)


def _rows(summary: Mapping[str, Any], variants: Mapping[str, tuple[str, str]]) -> Sequence[Sequence[str]]:
    return [
        [
            title,
            *(interval(summary[name].get(figure), ".1f", scale=100.0) for figure in FIGURES),
            paper,
        ]
        for name, (title, paper) in variants.items()
        if name in summary
    ]
