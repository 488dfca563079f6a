"""What tasks share that have measures of their own: how their results read, and their comparison over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from probattn.inference.report import Sheet
from probattn.inference.report.measures import MeasureText
from probattn.tasks.fine_tuning.page import headline, render, results_sheet
from probattn.tasks.fine_tuning.results import MeasuredResults, combine
from probattn.tasks.programs import AnyData, Program, ProgramTask
from probattn.tasks.task import AnyRecipe

AnyMeasured = TypeVar("AnyMeasured", bound=MeasuredResults)


class MeasuredTask(
    ProgramTask[AnyRecipe, AnyMeasured, AnyData, Program], Generic[AnyRecipe, AnyMeasured, AnyData, Program]
):
    """A task of one network whose results are measures of its own.

    Attributes:
        measures: what is measured, the most important first; of shares and numbers, with their direction.
    """

    measures: ClassVar[Mapping[str, MeasureText]]

    @classmethod
    def headline(cls, results: AnyMeasured) -> str:
        """The main result, in one line."""
        return headline(results, cls.measures)

    @classmethod
    def table(cls, results: AnyMeasured) -> Sheet:
        """The results for a terminal."""
        return results_sheet(results, cls.measures)

    @classmethod
    def page(cls, results: AnyMeasured) -> str:
        """The report: one HTML page that needs nothing but itself."""
        return render(results, cls.measures, cls.unit)

    @classmethod
    def summary(cls, results: AnyMeasured) -> dict[str, Any]:
        """The headline and the comparisons of the run's own network, for programs."""
        compared = [
            {
                **difference.model_dump(exclude={"seeds", "resamples"}),
                "verdict": results.verdict(difference, cls.measures[difference.measure]),
            }
            for difference in results.differences
            if difference.model == results.compared
        ]
        return {"headline": cls.headline(results), "seeds": results.seeds, "comparisons": compared}

    @classmethod
    def combine(cls, results: Mapping[str, AnyMeasured]) -> AnyMeasured:
        """The comparison of several runs over their seeds, by the path of their folders."""
        return combine(results)
