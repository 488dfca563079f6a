"""Tables of docs/data/copying.json, which `tests/benchmarks/study.py copying` writes: a part for each experiment."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from measured_tables.markdown import table

SOURCE = "tests/benchmarks/study.py copying"
PARTS = ("permutations", "heads", "probe", "locality")
LOOKS = {
    "probe": "probe",
    "attention": "attention",
    "agreement": "A(α, β)",
    "agreement_uniform": "A(α, βᵘᶠ)",
}
PLACES = {"keyword": "keyword", "next_word": "word after it", "mean": "mean of all", "last": "last word"}
STEPS = 5
"""Evaluated steps, at most, that a table shows."""


def tables(content: Mapping[str, Any]) -> str:
    """What was run, how many runs learned, and what the runs looked like on the way."""
    rows = content["conditions"].values()
    if content["task"] == "keyword":
        return "\n\n".join([_setting(content), _odds(rows)])
    parts = [_setting(content), *_search(content), _learned(content), _looks(rows)]
    return "\n\n".join(parts)


def _setting(content: Mapping[str, Any]) -> str:
    setting = content["setting"]
    training = setting["training"]
    return (
        f"`{setting['recipe']}`: width {setting['network']['width']}, {training['steps']:,} updates of "
        f"{training['batch_size']} sentences at a learning rate of {training['learning_rate']:g}, "
        f"{training['runs']} runs a condition. Means over runs."
    )


def _search(content: Mapping[str, Any]) -> Iterator[str]:
    """Heads that were tried, where there was a search."""
    if content["search"]:
        cells = [[str(each["model"]), str(each["good"]), str(each["bad"])] for each in content["search"]]
        yield table(["model", f"learned by step {content['setting']['search_steps']}", "did not"], cells)


def _learned(content: Mapping[str, Any]) -> str:
    setting, cells = content["setting"], []
    for row in content["conditions"].values():
        step = row["median_step"]
        cells.append(
            [
                row["title"],
                f"{row['reached']} of {row['seeds']}",
                "none" if step is None else f"{step:,.0f}",
                f"{row['end']['mean']:.3f}",
                f"{row['end']['lowest']:.3f}",
                _p(row["fisher"]),
                _p(row["log_rank"]),
            ]
        )
    head = ["", f"{setting['threshold']:g} by step {setting['by_step']:,}", "median step"]
    return table([*head, "at the end", "lowest", "Fisher p", "log-rank p"], cells)


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _looks(rows: Collection[Mapping[str, Any]]) -> str:
    """Measures by condition and step; all conditions are evaluated at the same steps."""
    cells = []
    for row in rows:
        measured = [(words, row["mean"][name]) for name, words in LOOKS.items() if name in row["mean"]]
        for number, (words, values) in enumerate(measured):
            shown = [f"{values[place]:.2f}" for place in _places(row)]
            cells.append(["" if number else row["title"], words, *shown])
    first, *_ = rows
    steps = [f"{first['steps'][place]:,}" for place in _places(first)]
    return table(["", "step", *steps], cells)


def _odds(rows: Collection[Mapping[str, Any]]) -> str:
    """Log-odds by condition and step, and in how many runs each position has the largest."""
    cells = []
    for row in rows:
        for number, place in enumerate(_places(row)):
            values = [row["mean"][name][place] for name in PLACES]
            cells.append(
                [
                    "" if number else row["title"],
                    f"{row['steps'][place]:,}",
                    f"{row['mean']['accuracy'][place]:.3f}",
                    *("" if value is None else f"{value:.2f}" for value in values),
                    " / ".join(str(counts[place]) for counts in row["largest"].values()),
                ]
            )
    return table(["", "step", "accuracy", *PLACES.values(), "largest in runs, without the mean"], cells)


def _places(row: Mapping[str, Any]) -> list[int]:
    """Steps that a table shows, evenly spread over the evaluated ones, by number."""
    last = len(row["steps"]) - 1
    return sorted({round(number * last / (STEPS - 1)) for number in range(STEPS)})
