"""What the page of a run of translation has besides the usual sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from probattn.report.markup import Section
from probattn.report.sections import QUANTITIES
from probattn.tasks.translation.results import TranslationResults


def sections(results: TranslationResults) -> Iterator[Section]:
    """The section on samples."""
    if results.samples:
        yield Section("samples", "Translations", "Sample translations", "samples.html", {"results": results})


def quantities(results: TranslationResults) -> Mapping[str, tuple[str, str]]:
    """Units of training curves."""
    unit = "per token" if "\n  per: token" in results.run.recipe else "per pair"
    return {**QUANTITIES, "loss": ("Loss", f"nats {unit}")}
