"""What becomes of the records of a run of whatever kind: a table, a page, a summary for programs."""

from __future__ import annotations

from pathlib import Path

from probattn.cli.experiment_evaluating import experiment_table
from probattn.cli.sheets import Sheet
from probattn.cli.tables import results_table
from probattn.cli.translation import translation_table
from probattn.inference.report import (
    AnyResults,
    ExperimentResults,
    TranslationResults,
    experiment_headline,
    findings,
    headline,
    translation_headline,
    write_experiment_report,
    write_report,
    write_translation_report,
)


def table(results: AnyResults) -> Sheet:
    """The records as a table for the terminal."""
    if isinstance(results, TranslationResults):
        return translation_table(results)
    if isinstance(results, ExperimentResults):
        return experiment_table(results)
    return results_table(results)


def write_page(results: AnyResults, file: Path) -> Path:
    """Writes the page of the records."""
    if isinstance(results, TranslationResults):
        return write_translation_report(results, file)
    if isinstance(results, ExperimentResults):
        return write_experiment_report(results, file)
    return write_report(results, file)


def summary(results: AnyResults) -> dict[str, object]:
    """What a report says, for a program."""
    if isinstance(results, TranslationResults):
        return {"headline": translation_headline(results)}
    if isinstance(results, ExperimentResults):
        return {"headline": experiment_headline(results)}
    return {
        "headline": headline(results),
        "seeds": results.seeds,
        "comparisons": [
            {
                **finding.difference.model_dump(exclude={"seeds", "resamples"}),
                "verdict": finding.verdict,
            }
            for finding in findings(results)
        ],
    }
