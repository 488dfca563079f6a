"""The tables of docs/data/methods.json, which `tests/benchmarks/study.py methods` writes by group and data set."""

import json
from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table
from probattn.comparison import ComparisonResults, Row
from probattn.comparison.page import SHOWN, row_title
from probattn.comparison.variants import MEASURES

SOURCE = "tests/benchmarks/study.py methods"
PARTS = ("methods", "objective", "particles", "dropout")
LATENT = ("draws", "moments")
"""Predictions of latent attention."""
NAMES = {
    "clinc150": "CLINC150",
    "banking77": "BANKING77, a quarter of the intents left out",
    "trec": "TREC",
    "rotten_tomatoes": "Rotten Tomatoes",
}


def cell(results: ComparisonResults, row: Row, name: str) -> str:
    """A mean, and in brackets the interval of its difference to the reference; bold where that is significant."""
    measure, found, gap = MEASURES[name], row.values.get(name), row.gaps.get(name)
    if found is None:
        return ""
    words = measure.value(found.mean)
    if gap is None:
        return words
    words = words if results.verdict(name, gap) == "unclear" else f"**{words}**"
    return f"{words} [{measure.difference(gap.low)}, {measure.difference(gap.high)}]"


def tables(content: Mapping[str, Any]) -> str:
    """A table a data set; where the reference is dropout, one of what latent attention gains at no more passes."""
    found = {name: ComparisonResults.model_validate_json(json.dumps(each)) for name, each in content.items()}
    if any(results.reference[1] == "dropout" for results in found.values()):
        return _gains(found)
    if any("particles" in results.methods for results in found.values()):
        return "\n\n".join([_shares(found), *(_table(name, results) for name, results in found.items())])
    return "\n\n".join(_table(name, results) for name, results in found.items())


def _costs(results: ComparisonResults) -> bool:
    """Whether passes were measured."""
    return any(row.cost.mean for row in results.rows)


def _gains(found: Mapping[str, ComparisonResults]) -> str:
    """Coverage and AUROC over those of dropout: of as many posterior draws, and of moments that cost no more."""
    rows = []
    for name, results in found.items():
        reference = next(row for row in results.rows if (row.recipe, row.variant) == results.reference)
        for row in results.rows:
            if row.variant in LATENT and (row.variant == "draws" or row.cost.mean <= reference.cost.mean):
                cells = [cell(results, row, measure) for measure in ("coverage", "auroc")]
                passes = f"{row.cost.mean:.1f} of {reference.cost.mean:.1f}"
                rows.append([NAMES[name], row.recipe.replace("_", " "), row_title(row), *cells, passes])
    head = ["data", "recipe", "prediction", *(MEASURES[each].short for each in ("coverage", "auroc"))]
    return table([*head, "passes"], rows)


def _shares(found: Mapping[str, ComparisonResults]) -> str:
    """How much of what an ensemble of all seeds gains over one network others gain, in one pass or by their draws."""
    rows = []
    for name, results in found.items():
        by_key = {(row.recipe, row.variant): row for row in results.rows}
        single, ensemble = (by_key.get((results.reference[0], way)) for way in ("point", "ensemble"))
        if single is None or ensemble is None:
            continue
        for (recipe, way), row in by_key.items():
            if way != "point" or row is single:
                continue
            shares = [_share(row, single, ensemble, measure) for measure in ("nll", "coverage")]
            gaps = [cell(results, row, measure) for measure in ("nll", "coverage", "auroc")]
            title = recipe.replace("_", " ")
            rows.append([NAMES[name], title, f"{row.cost.mean:.1f}", *gaps, *shares])
        figures = [MEASURES[measure].value(ensemble.values[measure].mean) for measure in ("nll", "coverage")]
        seeds = len(results.seeds)
        auroc = ensemble.values.get("auroc")
        figures.append("" if auroc is None else MEASURES["auroc"].value(auroc.mean))
        rows.append([NAMES[name], f"ensemble of {seeds}", f"{seeds:.1f}", *figures, "1", "1"])
    shorts = [MEASURES[measure].short for measure in ("nll", "coverage", "auroc")]
    head = ["data", "recipe", "passes", *shorts, "share of the gain, NLL", "share, coverage"]
    return table(head, rows)


def _share(row: Row, single: Row, ensemble: Row, measure: str) -> str:
    """The gain over one network as a share of the ensemble's; nothing where the ensemble gains nothing."""
    gained, most = (item.values[measure].mean - single.values[measure].mean for item in (row, ensemble))
    return f"{gained / most:.2f}" if abs(most) > 1e-9 else ""


def _table(name: str, results: ComparisonResults) -> str:
    measures = [each for each in SHOWN if any(each in row.values for row in results.rows)]
    sizes = results.sizes
    rows = [
        [
            row.recipe.replace("_", " "),
            row_title(row),
            *(cell(results, row, each) for each in measures),
            *([f"{row.cost.mean:.1f}"] if _costs(results) else []),
        ]
        for row in results.rows
    ]
    head = ["recipe", "prediction", *(MEASURES[each].short for each in measures)]
    head += ["cost, passes"] if _costs(results) else []
    outside = f", {sizes['out_of_domain']:,} out of domain" if "out_of_domain" in sizes else ""
    words = (
        f"**{NAMES[name]}**: {sizes['train']:,} training texts, {sizes['test']:,} test texts{outside}, "
        f"{len(results.seeds)} seeds."
    )
    return f"{words}\n\n{table(head, rows)}"
