"""Methods against each other and against baselines: trained over seeds, predicted in every way, compared in pairs.

``probattn compare RECIPE...`` and :func:`compare` train the recipes over seeds, predict with each network in every way
that it has (one pass, temperature, dropout, Laplace, draws, moments, an ensemble of the seeds), and write a table and a
page: what each answers at an error, how well it detects out-of-distribution inputs,
and what it costs.
"""

from probattn.comparison.results import ComparisonResults, Interval, Row
from probattn.comparison.running import CompareOptions, compare
from probattn.comparison.tables import comparison_table
from probattn.comparison.ways import Ways, all_ways, figures

__all__ = [
    "CompareOptions",
    "ComparisonResults",
    "Interval",
    "Row",
    "Ways",
    "all_ways",
    "compare",
    "comparison_table",
    "figures",
]
