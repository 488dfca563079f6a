"""The page of a run of translation."""

from __future__ import annotations

from probattn.report.markup import Section
from probattn.report.sections import QUANTITIES
from probattn.tasks.fine_tuning.page import render as render_measured
from probattn.tasks.translation.results import MEASURES, TranslationResults


def render(results: TranslationResults) -> str:
    """The page as text: HTML with its styles and drawings inside; equal records give an equal page."""
    unit = "per token" if "\n  per: token" in results.run.recipe else "per pair"
    samples = Section("samples", "Translations", "Sample translations", "samples.html", {"results": results})
    return render_measured(
        results,
        MEASURES,
        "pairs",
        more=[samples if results.samples else None],
        head_measure="token accuracy",
        prediction=results.search,
        package="probattn.tasks.translation",
        quantities={**QUANTITIES, "loss": ("Loss", f"nats {unit}")},
    )
