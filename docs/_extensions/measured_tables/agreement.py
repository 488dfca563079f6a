"""Tables of docs/data/agreement.json, which `tests/benchmarks/study.py agreement` writes, beside the paper's."""

from collections.abc import Iterator, Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py agreement"
SUBJECTS = {
    "sst2": "SST-2",
    "imdb": "IMDB",
    "bbc": "BBC news",
    "multi30k": "Multi30k En-De",
    "multi30k_linear": "Multi30k En-De, linear output",
}
PAIRS = {
    "attention_uniform": "α, βᵘᶠ",
    "uniform_proxy": "βᵘᶠ, βᵖˣ",
    "saliency_uniform": "Δ, βᵘᶠ",
    "attention_probe": "α, β",
}
AGREEMENT = {
    "sst2": (19.85, 33.57, 22.45, 25.33, 8.39),
    "imdb": (52.55, 81.60, 61.55, 60.35, 5.30),
    "multi30k": (31.02, 34.43, 27.06, 48.78, 7.11),
}
"""Table 5 of Snell et al. 2021: the pairs, and chance."""

XI = {
    "sst2": ("78.16", "83.53*", "78.16", "82.38", "83.53"),
    "imdb": ("86.81", "88.88", "86.81", "86.81", "89.55"),
    "multi30k": ("43.45", "43.45", "43.45", "48.58", "66.29"),
}
"""Table 5: the pairs, and the end."""

XI_BLEU = {"multi30k": ("11.43", "11.43", "11.43", "16.41", "37.89")}
"""Table 6."""

TAU = {"sst2": (11.68, 31.43, 15.01), "imdb": (12.77, 33.31, 12.56), "multi30k": (7.89, 27.54, 3.93)}
"""Table 3: the first three pairs."""

FROZEN = {"sst2": 14, "imdb": 9}
"""Table 10: the left column, in whole percent; the right one is the first of Table 5."""


def tables(content: Mapping[str, Any]) -> str:
    """Agreement, what it is worth, Kendall's tau, the frozen probe and the best attention, as far as measured."""
    rows = content["summary"]
    kept = {key: row for key, row in rows.items() if "agreement" in row}
    parts = [
        _agreement(kept),
        _xi(kept, "xi", XI, "accuracy", scale=100),
        *([_xi(bleu, "xi_bleu", XI_BLEU, "BLEU", scale=1)] if (bleu := _with(kept, "xi_bleu")) else []),
        _tau(kept),
        *(
            _xi(found, name, {}, unit, scale=scale)
            for name, unit, scale in (("xi_tau", "of τ, accuracy", 100), ("xi_tau_bleu", "of τ, BLEU", 1))
            if (found := _with(kept, name))
        ),
        *_frozen(_with(kept, "frozen")),
        *_optimal({key: row for key, row in rows.items() if "optimal_probe" in row}),
    ]
    return "\n\n".join(part for part in parts if part)


def _with(rows: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: row for key, row in rows.items() if name in row}


def _agreement(rows: Mapping[str, Any]) -> str:
    cells = []
    for key, row in rows.items():
        own = [interval(row["agreement"][pair], ".1f", scale=100, strong=True) for pair in PAIRS]
        cells.append([SUBJECTS[key], *own, f"{100 * row['chance']['mean']:.1f}", str(row["seeds"])])
        if key in AGREEMENT:
            cells.append(["in the paper", *(f"{value:.1f}" for value in AGREEMENT[key]), "1"])
    return table(["A", *PAIRS.values(), "by chance", "seeds"], cells)


def _xi(rows: Mapping[str, Any], name: str, paper: Mapping[str, Any], unit: str, *, scale: float) -> str:
    cells = []
    for key, row in rows.items():
        cells.append([SUBJECTS[key], *(_reached(row, name, pair, scale) for pair in (*PAIRS, "end"))])
        if key in paper:
            cells.append(["in the paper", *paper[key]])
    return table([f"ξ, {unit}", *PAIRS.values(), "ξ*"], cells) if cells else ""


def _reached(row: Mapping[str, Any], name: str, pair: str, scale: float) -> str:
    """The mean, starred where some seed never reached the agreement."""
    found = row[name].get(pair)
    if found is None:
        return ""
    return f"{scale * found['mean']:.1f}{'' if found['reached'] == row['seeds'] else '*'}"


def _tau(rows: Mapping[str, Any]) -> str:
    cells = []
    for key, row in rows.items():
        cells.append(
            [SUBJECTS[key], *(interval(row["tau"][pair], ".1f", scale=100, strong=True) for pair in PAIRS)]
        )
        if key in TAU:
            cells.append(["in the paper", *(f"{value:.1f}" for value in TAU[key]), ""])
    return table(["Kendall's τ", *PAIRS.values()], cells)


def _frozen(rows: Mapping[str, Any]) -> Iterator[str]:
    cells = []
    for key, row in rows.items():
        frozen = row["frozen"]
        cells.append(
            [
                SUBJECTS[key],
                interval(frozen["accuracy"], ".1f", scale=100, strong=True),
                interval(row["accuracy"], ".1f", scale=100),
                interval(frozen["agreement"], ".1f", scale=100),
                interval(frozen["with_learned_last"], ".1f", scale=100),
                interval(frozen.get("with_learned"), ".1f", scale=100) or "not measured",
                interval(row["agreement"]["attention_uniform"], ".1f", scale=100),
            ]
        )
        if key in FROZEN:
            cells.append(["in the paper", *[""] * 4, f"{FROZEN[key]}", f"{AGREEMENT[key][0]:.1f}"])
    head = ["frozen probe", "accuracy", "as it is", "αᶠʳ, β", "α, αᶠʳ", "at its best", "α, βᵘᶠ"]
    if cells:
        yield table(head, cells)


def _optimal(rows: Mapping[str, Any]) -> Iterator[str]:
    if rows:
        yield table(
            ["best attention", "A(αᵒᵖᵗ, β)", "A(α, β)", "loss with αᵒᵖᵗ", "loss"],
            [
                [
                    SUBJECTS[key],
                    interval(row["optimal_probe"], ".1f", scale=100, strong=True),
                    interval(row["attention_probe"], ".1f", scale=100),
                    f"{row['least_loss']['mean']:.2f}",
                    f"{row['loss']['mean']:.2f}",
                ]
                for key, row in rows.items()
            ],
        )
