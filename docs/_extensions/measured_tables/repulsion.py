"""Tables of docs/data/repulsion.json, which `tests/benchmarks/study.py repulsion` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py repulsion"
SUBJECTS = {
    "trec": "Self-attentive classifier, TREC",
    "sst2": "Self-attentive classifier, SST-2",
    "sst2_transformer": "MiniLM, SST-2",
}
METHODS = {
    "plain": "as it is",
    "svgd": "SVGD",
    "svgd_strong": "SVGD, weight 0.01",
    "spos": "SPOS",
    "sgld": "SGLD",
    "svgd_normal": "SVGD, normal prior",
    "cosine_penalty": "penalty on cosines of weights",
    "cosine_gradient": "its gradient of a kernel, unsmoothed",
    "cosine_kernel": "SVGD with the cosine as kernel",
    "frobenius": "Frobenius penalty",
}
UNTUNED = {
    "spos": "SPOS as printed, noise of one text",
    "sgld": "SGLD, T = 1, not chosen",
    "frobenius": "Frobenius penalty, weight 1, not chosen",
}
"""Those of which a value is chosen elsewhere, where none was."""
WEIGHTS = {"cosine_penalty": "weight", "frobenius": "weight"}
"""What is chosen, where it is not a temperature."""


def tables(content: Mapping[str, Any]) -> str:
    """Accuracies, heads' differences, calibration and what was chosen from, for each network and its data."""
    parts = []
    for subject, rows in content["summary"].items():
        choices = content.get("choices", {}).get(subject, {})
        names = {name: _label(name, choices) for name in rows}
        parts += [f"{SUBJECTS[subject]}.", _accuracies(rows, names), _heads(rows, names)]
        if any("ece" in row for row in rows.values()):
            parts.append(_calibration(rows, names))
        if choices:
            parts.append(_choices(choices))
    return "\n\n".join(parts)


def _label(name: str, choices: Mapping[str, Any]) -> str:
    """A method's name, with the temperature or weight that was chosen for it."""
    if name in choices:
        return f"{METHODS[name]}, {WEIGHTS.get(name, 'T')} = {_short(choices[name]['value'])}"
    return UNTUNED.get(name, METHODS[name])


def _short(value: float) -> str:
    return f"{value:g}".replace("e-0", "e-")


def _accuracies(rows: Mapping[str, Any], names: Mapping[str, str]) -> str:
    cells = []
    for name, row in rows.items():
        gap = interval(row.get("difference", {}).get("accuracy"), "+.2f", scale=100)
        cells.append(
            [names[name], f"{100 * row['accuracy']['mean']:.2f}", gap, str(row["accuracy"]["seeds"])]
        )
    return table(["", "accuracy", "difference", "seeds"], cells)


def _choices(choices: Mapping[str, Any]) -> str:
    """Validation loss and accuracy of each temperature or weight, the chosen one strong."""
    cells = []
    for name, choice in choices.items():
        for one in choice["candidates"]:
            loss = f"{one['validation_loss']:.4f}"
            chosen = one["value"] == choice["value"]
            cells.append(
                [
                    METHODS[name],
                    _short(one["value"]),
                    f"**{loss}**" if chosen else loss,
                    f"{100 * one['validation_accuracy']:.2f}",
                    ", ".join(map(str, one["seeds"])),
                ]
            )
    return table(["choice of T or weight", "value", "validation loss", "validation accuracy", "seeds"], cells)


def _calibration(rows: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Calibration errors in percent, and entropy out of domain, of the methods that were measured for it."""
    cells = []
    for name, row in rows.items():
        if "ece" in row:
            gaps = row.get("difference", {})
            cells.append(
                [
                    names[name],
                    f"{100 * row['ece']['mean']:.2f}",
                    interval(gaps.get("ece"), "+.2f", scale=100),
                    f"{100 * row['overconfidence']['mean']:.2f}",
                    f"{row['ood_entropy']['mean']:.3f}",
                    f"{row['ood_auroc']['mean']:.3f}",
                    interval(gaps.get("ood_auroc"), "+.3f"),
                ]
            )
    head = ["", "ECE", "difference", "OE", "entropy out of domain", "OOD AUROC", "difference"]
    return table(head, cells)


def _heads(rows: Mapping[str, Any], names: Mapping[str, str]) -> str:
    cells = []
    for name, row in rows.items():
        gaps = row.get("difference", {})
        cells.append(
            [
                names[name],
                f"{row['distance']['mean']:#.3g}",
                f"{row['relative_distance']['mean']:#.3g}",
                interval(row.get("relative_distance_ratio"), "#.3g", strong=True),
                f"{row['overlap']['mean']:.3f}",
                interval(gaps.get("overlap"), "+.3f"),
                f"{row['cosine']['mean']:.3f}",
                f"{row['norm']['mean']:.2f}",
            ]
        )
    head = ["", "Dist", "relative Dist", "over that as it is", "overlap", "difference", "cosine"]
    return table([*head, "length of a head"], cells)
