"""The tables of docs/data/methods.json, which `tests/benchmarks/study.py methods` writes by group and data set."""

import json
from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table
from probattn.comparison import ComparisonResults, Row
from probattn.comparison.page import SHOWN, row_title
from probattn.comparison.variants import MEASURES

SOURCE = "tests/benchmarks/study.py methods"
PARTS = ("methods", "objective", "dropout")
LATENT = ("draws", "moments")
"""Ways of latent attention."""
NAMES = {
    "clinc150": "CLINC150",
    "banking77": "BANKING77, a quarter of the intents left out",
    "trec": "TREC",
    "rotten_tomatoes": "Rotten Tomatoes",
}


def cell(results: ComparisonResults, row: Row, name: str) -> str:
    """A mean, and in brackets the interval of its difference to the reference; bold where that is reliable."""
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
