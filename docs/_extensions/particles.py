"""mkdocs hook: `<!-- particles -->` in a page becomes the tables of docs/data/particles.json."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "<!-- particles -->"
UNMEASURED = "*No figures are in this version; `tests/benchmarks/particle_study.py` makes them.*"
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
INDEPENDENT = ("1,0", "10,0", "100,0", "1000,0")
CORRELATED = ("2,0.9", "10,0.9", "50,0.5")

Run = Mapping[str, Any]


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Puts the tables in the place of the mark."""
    if MARK not in markdown:
        return markdown
    path = Path(config["docs_dir"]) / "data" / "particles.json"
    return markdown.replace(
        MARK, tables(json.loads(path.read_text("utf-8"))) if path.exists() else UNMEASURED
    )


def tables(content: Mapping[str, Any]) -> str:
    """The file of `tests/benchmarks/particle_study.py` as Markdown: independent and correlated dimensions."""
    return "\n\n".join([_independent(content), _correlated(content)])


def _independent(content: Mapping[str, Any]) -> str:
    head = [
        "| Variance, N(0, I), 12 particles | 1 dimension | 10 | 100 | 1000 | runs |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(head + _rows(content, INDEPENDENT, _variance))


def _correlated(content: Mapping[str, Any]) -> str:
    head = [
        "| Variance, correlation; 30 particles | 2 dimensions, 0.9 | 10, 0.9 | 50, 0.5 | runs |",
        "|---|---|---|---|---|",
    ]
    return "\n".join(head + _rows(content, CORRELATED, _both))


def _rows(content: Mapping[str, Any], cases: Sequence[str], words: Any) -> list[str]:
    rows = []
    for method, name in NAMES.items():
        found = {
            case: [run for run in content["runs"] if (run["method"], run["case"]) == (method, case)]
            for case in cases
        }
        if not any(found.values()):
            continue
        temperature = content["inverse_temperatures"].get(method)
        label = name if temperature is None else f"{name}, b = {temperature:g}"
        counts = sorted({len(runs) for runs in found.values()})
        cells = [label, *(words(runs) if runs else "" for runs in found.values()), f"{counts[0]}"]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _variance(runs: Sequence[Run]) -> str:
    """The mean over seeds, with a dagger where most runs count as collapsed."""
    mean = statistics.fmean(run["variance"] for run in runs)
    collapsed = sum(run["collapse"] is not None for run in runs) > len(runs) / 2
    return f"{mean:.3f} †" if collapsed else f"{mean:.2f}"


def _both(runs: Sequence[Run]) -> str:
    correlation = statistics.fmean(run["correlation"] for run in runs)
    variance = _variance(runs)
    number, _, dagger = variance.partition(" ")
    return f"{float(number):.2f}, {correlation:.2f}{' ' + dagger if dagger else ''}"
