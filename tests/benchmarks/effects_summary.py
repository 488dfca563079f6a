"""Means over texts and networks of what methods say of words, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from effects_posterior import NAIVE, SPREADS, distrust_measures, distrust_summary

DRAWS = 1000
LEVEL = 0.95
COMPARED = "slope"
"""The method that others are compared with."""
PLANTED = ("words", "clause")
MEASURES = ("deleted", "masked", "comprehensiveness", "sufficiency", "passes")
Figures = dict[str, Any]
Runs = Sequence[Mapping[str, Any]]
Rows = Sequence[Sequence[Any]]
"""What was measured of texts, by network."""


def ends(value: float, drawn: np.ndarray) -> list[float]:
    """A figure with the interval of those of draws."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [round(float(number), 4) for number in (value, low, high)]


def resampled(rows: Rows) -> list[np.ndarray]:
    """Of each network with texts, values of texts that are drawn with replacement, ``[DRAWS, texts, ...]``."""
    generator = np.random.default_rng(0)
    arrays = [np.asarray(texts, dtype=float) for texts in rows if len(texts)]
    return [texts[generator.integers(len(texts), size=(DRAWS, len(texts)))] for texts in arrays]


def mean(rows: Rows) -> float:
    """The mean over networks of the mean over texts."""
    return float(np.mean([np.mean(texts) for texts in rows if len(texts)]))


def averaged(rows: Rows) -> list[float] | None:
    """The mean over networks of the mean over texts, with its interval; None without texts."""
    drawn = [texts.mean(axis=1) for texts in resampled(rows)]
    return ends(mean(rows), np.mean(drawn, axis=0)) if drawn else None


def ratio(rows: Rows) -> list[float]:
    """The sum of the first over that of the second, of pairs of all texts, with its interval."""
    first, second = np.sum([pair for texts in rows for pair in texts], axis=0)
    sums = np.sum([texts.sum(axis=1) for texts in resampled(rows)], axis=0)
    return ends(first / second, sums[:, 0] / sums[:, 1])


def summarised(runs: Runs) -> Figures:
    """By data set and kind of network."""
    kinds: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for run in runs:
        kinds.setdefault(run["network"], {}).setdefault(run["set"], []).append(run)
    return {kind: {name: of_set(networks) for name, networks in sets.items()} for kind, sets in kinds.items()}


def over(runs: Runs, part: str, value: Callable[[Any], Any]) -> list[float] | None:
    """A value of the rows of a part that have it, averaged; None without any."""
    return averaged([[one for row in run[part] if (one := value(row)) is not None] for run in runs])


def of_set(runs: Runs) -> Figures:
    """Of the networks of one data set."""
    texts = [run["texts"] for run in runs]
    figures: Figures = {
        "seeds": [run["seed"] for run in runs],
        "long": runs[0]["long"],
        "accuracy": [round(run["accuracy"], 4) for run in runs],
        "texts": sum(map(len, texts)),
        "words": round(mean([[row["words"] for row in rows] for rows in texts]), 1),
        "planted": sum(len(run["planted"]) for run in runs),
        "planted_drop": over(runs, "planted", itemgetter("drop")),
        "planted_words_left_out": over(runs, "planted", lambda row: row["words"]["left_out"]),
        "planted_clause_left_out": over(runs, "planted", lambda row: row["clause"]["left_out"]),
        "agreement": averaged([[side for row in rows for side in row["agreement"] or ()] for rows in texts]),
        "agreement_texts": over(
            runs, "texts", lambda row: all(row["agreement"]) if row["agreement"] else None
        ),
        "methods": {name: of_method(name, runs) for name in texts[0][0]["methods"]},
    }
    if spreads := [text for run in runs for text in run.get("distrust", ())]:
        figures["distrust"] = of_distrust(spreads)
    counted = [run["reviewed"] for run in runs if "reviewed" in run]
    return figures | ({"reviewed": counted[0]} if counted else {})


def of_method(name: str, runs: Runs) -> Figures:
    """Measures of a method, and by how much the compared method's are above, of the texts that it was measured on."""
    rows = [[row for row in run["texts"] if name in row["methods"]] for run in runs]
    costs = [row["methods"][name]["seconds"] / row["forward"] for of_run in rows for row in of_run]
    removed = [
        [
            (row["methods"][name]["removed"], row["removable"])
            for row in of_run
            if row["removable"] is not None
        ]
        for of_run in rows
    ]
    by_seed = [mean([[row["methods"][name]["deleted"] for row in of_run]]) for of_run in rows]
    planted = {part: over(runs, "planted", lambda row, part=part: row[part].get(name)) for part in PLANTED}
    compared = COMPARED in rows[0][0]["methods"] and name != COMPARED and not name.startswith("doubt")

    def of_texts(measure: str) -> list[float] | None:
        return over(runs, "texts", lambda row: row["methods"].get(name, {}).get(measure))

    def gap(row: Any) -> float | None:
        one = row["methods"].get(name)
        return None if one is None else row["methods"][COMPARED]["deleted"] - one["deleted"]

    figures = {
        "texts": len(costs),
        **{measure: of_texts(measure) for measure in MEASURES},
        "deleted_by_seed": [round(value, 4) for value in by_seed],
        "cost": round(float(np.median(costs)), 2),
        "removed": ratio(removed) if any(removed) else None,
        **{f"planted_{part}": value for part, value in planted.items()},
        **{part: over(runs, part, lambda row: row.get(name)) for part in ("varied", "control")},
        "compared": over(runs, "texts", gap) if compared else None,
        "compared_planted": over(runs, "planted", lambda row: row["words"][COMPARED] - row["words"][name])
        if compared and planted["words"]
        else None,
    }
    return {measure: value for measure, value in figures.items() if value is not None}


def of_distrust(texts: Runs) -> Figures:
    """Measures of spreads with their intervals, and by how much they exceed the naive one's."""
    generator = np.random.default_rng(0)
    measured = [distrust_measures(text) for text in texts]
    whole = distrust_summary(measured)
    drawn = [
        distrust_summary([measured[index] for index in generator.integers(len(texts), size=len(texts))])
        for _ in range(DRAWS)
    ]
    figures = {name: ends(value, np.array([draw[name] for draw in drawn])) for name, value in whole.items()}
    for name in whole:
        truth, *score, measure = name.split("/")
        naive = f"{truth}/{NAIVE.get(measure)}/{measure}"
        if score and score[0] in SPREADS:
            gaps = np.array([draw[name] - draw[naive] for draw in drawn])
            figures[f"{name}_above_naive"] = ends(whole[name] - whole[naive], gaps)
    return figures
