"""Tables of docs/data/particles.json, which `tests/benchmarks/study.py particle` writes."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from measured_tables.markdown import table

SOURCE = "tests/benchmarks/study.py particle"
NAMES = {
    "median": "`MedianRBF`",
    "imq": "`InverseMultiquadric`",
    "linear": "`LinearKernel`",
    "cosine": "`CosineKernel`",
    "marginal": "`MarginalRBF`",
    "sliced": "`SlicedRBF`",
    "spos": "SPOS, `MedianRBF`",
    "sgld": "SGLD",
    "pyro_multivariate": "Pyro, multivariate",
    "pyro_univariate": "Pyro, univariate",
}
INDEPENDENT = {"1,0": "1 dimension", "10,0": "10", "100,0": "100", "1000,0": "1000"}
CORRELATED = {"2,0.9": "2 dimensions, 0.9", "10,0.9": "10, 0.9", "50,0.5": "50, 0.5"}
FEW = {"50,0.9": "50 dimensions, 0.9", "100,0.5": "100, 0.5"}

Run = Mapping[str, Any]


def tables(content: Mapping[str, Any]) -> str:
    """Independent, then correlated dimensions, then few particles of the latter, by method and dimensions."""
    return "\n\n".join(
        [
            _table(content, "Variance, N(0, I), 12 particles", INDEPENDENT, _variance),
            _table(content, "Variance, correlation; 30 particles", CORRELATED, _both),
            _table(content, "Variance, correlation; 12 particles", FEW, _both),
        ]
    )


def _table(
    content: Mapping[str, Any], title: str, cases: Mapping[str, str], words: Callable[[Sequence[Run]], str]
) -> str:
    rows = []
    for method, name in NAMES.items():
        found = [
            [run for run in content["runs"] if (run["method"], run["case"]) == (method, case)]
            for case in cases
        ]
        if not any(found):
            continue
        temperature = content["inverse_temperatures"].get(method)
        label = name if temperature is None else f"{name}, b = {temperature:g}"
        rows.append([label, *(words(runs) if runs else "" for runs in found), f"{min(map(len, found))}"])
    return table([title, *cases.values(), "runs"], rows)


def _variance(runs: Sequence[Run]) -> str:
    """The mean over seeds, with a dagger where most runs count as collapsed."""
    mean = statistics.fmean(run["variance"] for run in runs)
    return f"{mean:.3f} †" if _collapsed(runs) else f"{mean:.2f}"


def _both(runs: Sequence[Run]) -> str:
    variance, correlation = (
        statistics.fmean(run[name] for run in runs) for name in ("variance", "correlation")
    )
    return f"{variance:.2f}, {correlation:.2f}{' †' if _collapsed(runs) else ''}"


def _collapsed(runs: Sequence[Run]) -> bool:
    return sum(run["collapse"] is not None for run in runs) > len(runs) / 2
