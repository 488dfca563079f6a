"""Methods against each other and against baselines: trained over seeds, predicted by every variant, compared in pairs.

``probattn compare RECIPE...`` and :func:`compare` train the recipes over seeds, predict with each network by every
variant that it has (one pass, temperature, dropout, Laplace, draws, moments, an ensemble of the seeds), and write a
table and a page: what each answers at an error, how well it detects out-of-distribution inputs, and what it costs.
"""

from typing import TYPE_CHECKING

from probattn.checks import imported_when_used

if TYPE_CHECKING:
    from probattn.comparison.options import CompareOptions
    from probattn.comparison.page import comparison_table
    from probattn.comparison.running import compare
    from probattn.comparison.variants import ComparisonResults, Interval, Row, Variants, all_variants, figures

# A comparison, its variants and its records
__all__ = ["CompareOptions", "compare", "Variants", "all_variants", "figures", "ComparisonResults", "Row"]
__all__ += ["Interval", "comparison_table"]

__getattr__ = imported_when_used(
    __name__, __all__, ("variants", "page", "running"), options=("CompareOptions",)
)
