"""Tables of docs/data/alignment.json, which `tests/benchmarks/study.py alignment` writes."""

from collections.abc import Mapping, Sequence
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py alignment"
NAMES = {
    "before": "pretrained, not tuned",
    "start": "where the runs start",
    "soft": "soft",
    "gan": "aligned, GAN",
    "ot": "aligned, OT",
    "ct": "aligned, CT",
    "mmd": "aligned, MMD",
}

ALIGNED = ("gan", "ot", "ct", "mmd")

Run = Mapping[str, Any]


def tables(content: Mapping[str, Any]) -> str:
    """Accuracies and distances over seeds, then one seed by weight and alignment alone."""
    summary, setting = content["summary"], content["setting"]
    weights = ", ".join(f"{name.upper()} {weight:g}" for name, weight in setting["recommended"].items())
    reduced = {"mean": "averaged", "sum": "summed"}[setting["reduction"]]
    recommended = (
        f"{_start(setting['start'])}Weights, {reduced} over heads and layers: {weights}. Queries and keys over "
        f"{setting['texts']} test pairs."
    )
    parts = [recommended, _accuracies(summary["main"]), _distances(summary["main"])]
    alone = setting["alone"]
    if not any(run["kind"] == "alone" for run in summary["alone"]):
        return "\n\n".join(parts)
    apart = (
        f"Alone: {alone['steps']} updates on the divergence and nothing else, learning rate "
        f"{alone['learning_rate']:g}, one seed."
    )
    return "\n\n".join(
        [*parts, "One seed, by weight.", _sweep(summary["sweep"]), apart, _alone(summary["alone"])]
    )


def _start(training: Mapping[str, Any] | None) -> str:
    """Which networks the runs start from."""
    if training is None:
        return ""
    length = f"{training['steps']} updates" if training["steps"] else f"{training['epochs']} epochs"
    return (
        f"Each seed starts from a network of its own that was fine-tuned with soft attention for {length} of "
        f"{training['batch_size']} pairs at learning rate {training['learning_rate']:g}. "
    )


def _accuracies(main: Mapping[str, Any]) -> str:
    rows = []
    for name, words in NAMES.items():
        row = main.get(name, {})
        if "accuracy" not in row:
            continue
        cells = [words]
        for measure in ("accuracy", "f1"):
            gap = row.get("difference", {}).get(measure)
            cells += [f"{100 * row[measure]['mean']:.2f}", interval(gap, "+.2f", scale=100)]
        rows.append([*cells, str(row["accuracy"]["seeds"])])
    return table(["", "accuracy", "difference to soft", "F1", "difference to soft", "seeds"], rows)


def _distances(main: Mapping[str, Any]) -> str:
    head = ["", "MMD", "soft over it", "MMD, centred", "soft over it", "length q", "length k", "AUC"]
    rows = []
    for name, words in NAMES.items():
        if name not in main:
            continue
        row = main[name]
        cells = [words]
        for measure in ("mmd", "mmd_centred"):
            ratio = row.get("ratio", {}).get(measure)
            cells += [f"{row[measure]['mean']:.3g}", interval(ratio, ".3g", strong=True)]
        cells += [f"{row[measure]['mean']:.2f}" for measure in ("query_norm", "key_norm")]
        cells += [f"{row[measure]['mean']:.3f}" for measure in ("auc", "auc_centred")]
        rows.append(cells)
    return table([*head, "AUC, centred"], rows)


def _sweep(runs: Sequence[Run]) -> str:
    """Accuracy, and the discrepancy in brackets, by weight; the form of the paper's table 9."""
    weights = [0, *sorted({run["weight"] for run in runs if run["method"] != "soft"})]
    soft = {run["weight"]: run for run in runs if run["method"] == "soft"}
    rows = []
    for name in ALIGNED:
        own = {run["weight"]: run for run in runs if run["method"] == name}
        if own:
            rows.append([NAMES[name], *(_scored((soft | own).get(weight)) for weight in weights)])
    return table(["accuracy (MMD)", *(f"{weight:g}" for weight in weights)], rows)


def _scored(run: Run | None) -> str:
    return "" if run is None else f"{100 * run['accuracy']:.1f} ({run['mmd']:.3g})"


def _alone(runs: Sequence[Run]) -> str:
    base = next((run for run in runs if run["kind"] == "before"), None)
    rows = []
    for run in runs:
        ratio = (
            "" if base is None or run is base or run["mmd"] <= 0 else f"**{base['mmd'] / run['mmd']:.3g}**"
        )
        cells = [NAMES["before" if run is base else run["method"]], f"{run['mmd']:.3g}", ratio]
        cells += [f"{run['mmd_centred']:.3g}", f"{run['query_norm']:.2f}", f"{run['key_norm']:.2f}"]
        rows.append([*cells, f"{run['auc']:.3f}"])
    head = ["alone", "MMD", "pretrained over it", "MMD, centred", "length q", "length k", "AUC"]
    return table(head, rows)
