"""Comparison of methods and baselines: recipes trained over seeds, predicted by every method, paired by seed.

``probattn compare RECIPE...`` and :func:`compare` train the recipes over seeds and predict with each network by every
prediction method ("variant") that it has: one forward pass, temperature scaling, dropout, Laplace approximation, draws,
moments, an ensemble of the seeds. They write a table and a page with the share of inputs that can be answered at a
target error rate, detection of out-of-distribution inputs, and cost.
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
