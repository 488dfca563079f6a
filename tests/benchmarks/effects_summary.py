"""Means over texts and networks of what methods say of words, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from effects_posterior import NAIVE, SPREADS, distrust_measures, distrust_summary

DRAWS = 1000
LEVEL = 0.95
COMPARED = "slope"
"""The method that others are compared with."""
MEASURES = ("deleted", "masked", "comprehensiveness", "sufficiency", "passes")
Figures = dict[str, Any]
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


def summarised(runs: Sequence[Mapping[str, Any]]) -> Figures:
    """By data set and kind of network."""
    kinds: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for run in runs:
        kinds.setdefault(run["network"], {}).setdefault(run["set"], []).append(run)
    return {kind: {name: of_set(networks) for name, networks in sets.items()} for kind, sets in kinds.items()}


def of_set(runs: Sequence[Mapping[str, Any]]) -> Figures:
    """Of the networks of one data set."""
    texts = [run["texts"] for run in runs]
    names = list(texts[0][0]["methods"])
    figures: Figures = {
        "seeds": [run["seed"] for run in runs],
        "long": runs[0]["long"],
        "accuracy": [round(run["accuracy"], 4) for run in runs],
        "texts": sum(map(len, texts)),
        "words": round(mean([[row["words"] for row in rows] for rows in texts]), 1),
        "planted": sum(len(run["planted"]) for run in runs),
        "planted_drop": averaged([[row["drop"] for row in run["planted"]] for run in runs]),
        **{
            f"planted_{part}_left_out": averaged(
                [[row[part]["left_out"] for row in run["planted"]] for run in runs]
            )
            for part in ("words", "clause")
        },
        "agreement": averaged([[side for row in rows for side in row["agreement"] or ()] for rows in texts]),
        "agreement_texts": averaged(
            [[all(row["agreement"]) for row in rows if row["agreement"]] for rows in texts]
        ),
        "methods": {name: of_method(name, runs) for name in names},
    }
    for part in ("distrust", "reviewed"):
        having = [run for run in runs if part in run]
        if having and part == "distrust":
            figures[part] = of_distrust([text for run in having for text in run[part]])
        elif having:
            figures[part] = having[0][part]
    return figures


def of_method(name: str, runs: Sequence[Mapping[str, Any]]) -> Figures:
    """Measures of a method, and by how much the compared method's are above, of the texts that it was measured on."""
    rows = [[row for row in run["texts"] if name in row["methods"]] for run in runs]
    texts = [[row["methods"] for row in of_run] for of_run in rows]
    figures: Figures = {"texts": sum(map(len, texts))}
    for measure in MEASURES:
        if measure in texts[0][0][name]:
            figures[measure] = averaged([[row[name][measure] for row in of_run] for of_run in texts])
    figures["deleted_by_seed"] = [
        round(mean([[row[name]["deleted"] for row in of_run]]), 4) for of_run in texts
    ]
    costs = [row["methods"][name]["seconds"] / row["forward"] for of_run in rows for row in of_run]
    figures["cost"] = round(float(np.median(costs)), 2)
    removed = [
        [
            (row["methods"][name]["removed"], row["removable"])
            for row in of_run
            if row["removable"] is not None
        ]
        for of_run in rows
    ]
    if any(removed):
        figures["removed"] = ratio(removed)
    for part in ("words", "clause"):
        if any(name in row[part] for run in runs for row in run["planted"]):
            figures[f"planted_{part}"] = averaged(
                [[row[part][name] for row in run["planted"]] for run in runs]
            )
    for part in ("varied", "control"):
        if any(name in row for run in runs for row in run[part]):
            figures[part] = averaged([[row[name] for row in run[part]] for run in runs])
    if COMPARED in texts[0][0] and name not in (COMPARED, *DOUBTED):
        gaps = [[row[COMPARED]["deleted"] - row[name]["deleted"] for row in of_run] for of_run in texts]
        figures["compared"] = averaged(gaps)
        if "planted_words" in figures:
            figures["compared_planted"] = averaged(
                [[row["words"][COMPARED] - row["words"][name] for row in run["planted"]] for run in runs]
            )
    return figures


DOUBTED = ("doubt_slope", "doubt_screened", "doubt_knockout")


def of_distrust(texts: Sequence[Mapping[str, Any]]) -> Figures:
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
