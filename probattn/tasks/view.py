"""Formatting of results: as one line, for a terminal, as a page, as JSON, and over seeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from probattn.report import Results, Sheet, combine, comparisons, headline, render_report, results_table
from probattn.report.markup import Section
from probattn.report.sections import QUANTITIES

AnyResults = TypeVar("AnyResults")


class View(ABC, Generic[AnyResults]):
    """Formatting of the results of a task.

    Attributes:
        results_class: class of the records in ``metrics.json``.
        no_seeds: reason why several runs are not compared over their seeds; None if they are.
    """

    results_class: type[AnyResults]
    no_seeds: str | None = None

    @abstractmethod
    def headline(self, results: AnyResults) -> str:
        """The main result, in one line."""

    @abstractmethod
    def table(self, results: AnyResults) -> Sheet:
        """The results as a table for a terminal."""

    @abstractmethod
    def page(self, results: AnyResults) -> str:
        """The report: one self-contained HTML page."""

    def summary(self, results: AnyResults) -> dict[str, Any]:
        """The headline and the comparisons behind it, as JSON-compatible values."""
        return {"headline": self.headline(results)}

    def combine(self, results: Mapping[str, AnyResults]) -> AnyResults:
        """The comparison of several runs over their seeds; ``results`` are by path of the run's folder.

        Raises:
            ValueError: the results do not fit each other, or the task has no such comparison.
        """
        raise ValueError(f"expected one run, {self.no_seeds}")


@dataclass(frozen=True)
class ResultsView(View[Results]):
    """Formatting of :class:`probattn.report.Results` or of a subclass.

    Attributes:
        results_class: class of the records.
        sections: function of the results that returns further sections of the page, inserted after the comparison.
        package: Python package that contains the templates of these sections.
        quantities: function of the results that returns heading and unit of each training curve by its quantity.
    """

    results_class: type[Results] = Results
    sections: Callable[[Any], Iterable[Section | None]] = lambda _: ()
    package: str | None = None
    quantities: Callable[[Any], Mapping[str, tuple[str, str]]] = lambda _: QUANTITIES

    def headline(self, results: Results) -> str:
        """Significant gains and losses of the run's network."""
        return headline(results)

    def table(self, results: Results) -> Sheet:
        """Table of all measures of the deterministic and of the run's network."""
        return results_table(results)

    def page(self, results: Results) -> str:
        """The page of :func:`probattn.report.render_report`, with the further sections."""
        return render_report(
            results, self.sections(results), package=self.package, quantities=self.quantities(results)
        )

    def summary(self, results: Results) -> dict[str, Any]:
        """The headline, the seeds, and every comparison of the run's network with its verdict."""
        return {**super().summary(results), "seeds": results.seeds, "comparisons": comparisons(results)}

    def combine(self, results: Mapping[str, Results]) -> Results:
        """Means over seeds, with differences paired by seed (:func:`probattn.report.combine`)."""
        return combine(results)
