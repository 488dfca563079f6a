"""mkdocs hook: `<!-- alignment -->` in a page becomes the tables of docs/data/alignment.json."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "<!-- alignment -->"
UNMEASURED = "*No figures are in this version; `tests/benchmarks/alignment_study.py` makes them.*"
NAMES = {
    "before": "pretrained, not tuned",
    "soft": "soft",
    "gan": "aligned, GAN",
    "ot": "aligned, OT",
    "ct": "aligned, CT",
    "mmd": "aligned, MMD",
}

Interval = Mapping[str, Any]
Run = Mapping[str, Any]


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Puts the tables in the place of the mark."""
    if MARK not in markdown:
        return markdown
    path = Path(config["docs_dir"]) / "data" / "alignment.json"
    return markdown.replace(
        MARK, tables(json.loads(path.read_text("utf-8"))) if path.exists() else UNMEASURED
    )


def tables(content: Mapping[str, Any]) -> str:
    """The file of `tests/benchmarks/alignment_study.py` as Markdown."""
    summary, setting = content["summary"], content["setting"]
    recommended = f"Weight {setting['recommended']:g}, queries and keys over {setting['texts']} test pairs."
    alone = setting["alone"]
    apart = (
        f"Alone: {alone['steps']} updates on the divergence and nothing else, learning rate "
        f"{alone['learning_rate']:g}, one seed."
    )
    parts = [recommended, _accuracies(summary["main"]), _distances(summary["main"])]
    return "\n\n".join(
        [*parts, "One seed, by weight.", _sweep(summary["sweep"]), apart, _alone(summary["alone"])]
    )


def _accuracies(main: Mapping[str, Any]) -> str:
    head = "| | accuracy | difference to soft | F1 | difference to soft | seeds |\n|---|---|---|---|---|---|"
    rows = []
    for name, words in NAMES.items():
        row = main.get(name)
        if row is None or "accuracy" not in row:
            continue
        cells = [words]
        for measure in ("accuracy", "f1"):
            cells += [f"{100 * row[measure]['mean']:.2f}", _gap(row.get("difference", {}).get(measure))]
        rows.append(_row([*cells, str(row["accuracy"]["seeds"])]))
    return "\n".join((head, *rows))


def _distances(main: Mapping[str, Any]) -> str:
    head = (
        "| | MMD | soft over it | MMD, centred | soft over it | length q | length k | AUC | AUC, centred |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    rows = []
    for name, words in NAMES.items():
        row = main.get(name)
        if row is None:
            continue
        cells = [words]
        for measure in ("mmd", "mmd_centred"):
            cells += [f"{row[measure]['mean']:.3g}", _times(row.get("ratio", {}).get(measure))]
        cells += [f"{row[measure]['mean']:.2f}" for measure in ("query_norm", "key_norm")]
        cells += [f"{row[measure]['mean']:.3f}" for measure in ("auc", "auc_centred")]
        rows.append(_row(cells))
    return "\n".join((head, *rows))


def _sweep(runs: Sequence[Run]) -> str:
    """Accuracy, and the discrepancy in brackets, by weight; the form of the paper's table 9."""
    weights = sorted({run["weight"] for run in runs if run["method"] != "soft"})
    head = f"| accuracy (MMD) | {' | '.join(f'{weight:g}' for weight in (0, *weights))} |"
    rows = [head, f"|---|{'---|' * (len(weights) + 1)}"]
    soft = {run["weight"]: run for run in runs if run["method"] == "soft"}
    for name in list(NAMES)[2:]:
        own = {run["weight"]: run for run in runs if run["method"] == name}
        if own:
            cells = [_scored((soft | own).get(weight)) for weight in (0, *weights)]
            rows.append(_row([NAMES[name], *cells]))
    return "\n".join(rows)


def _scored(run: Run | None) -> str:
    return "" if run is None else f"{100 * run['accuracy']:.1f} ({run['mmd']:.3g})"


def _alone(runs: Sequence[Run]) -> str:
    head = (
        "| alone | MMD | pretrained over it | MMD, centred | length q | length k | AUC |\n"
        "|---|---|---|---|---|---|---|"
    )
    base = next((run for run in runs if run["kind"] == "before"), None)
    rows = [head]
    for run in runs:
        ratio = (
            "" if base is None or run is base or run["mmd"] <= 0 else f"**{base['mmd'] / run['mmd']:.3g}**"
        )
        cells = [NAMES["before" if run is base else run["method"]], f"{run['mmd']:.3g}", ratio]
        cells += [f"{run['mmd_centred']:.3g}", f"{run['query_norm']:.2f}", f"{run['key_norm']:.2f}"]
        rows.append(_row([*cells, f"{run['auc']:.3f}"]))
    return "\n".join(rows)


def _gap(found: Interval | None) -> str:
    if found is None:
        return ""
    words = f"{100 * found['mean']:+.2f}"
    if found["low"] is None:
        return words
    return f"{words} [{100 * found['low']:+.2f}, {100 * found['high']:+.2f}]"


def _times(found: Interval | None) -> str:
    if found is None:
        return ""
    words = f"**{found['mean']:.3g}**"
    return words if found["low"] is None else f"{words} [{found['low']:.3g}, {found['high']:.3g}]"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
