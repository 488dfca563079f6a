"""How results of a task read: in one line, in a terminal, as a page, for programs, and over seeds."""

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
    """How the records of a task read.

    Attributes:
        results_class: the class of the records in ``metrics.json``.
        no_seeds: why several runs are not compared over their seeds; None where they are.
    """

    results_class: type[AnyResults]
    no_seeds: str | None = None

    @abstractmethod
    def headline(self, results: AnyResults) -> str:
        """The main result, in one line."""

    @abstractmethod
    def table(self, results: AnyResults) -> Sheet:
        """The results for a terminal."""

    @abstractmethod
    def page(self, results: AnyResults) -> str:
        """The report: one HTML page that needs nothing but itself."""

    def summary(self, results: AnyResults) -> dict[str, Any]:
        """The headline, and the comparisons behind it, for programs."""
        return {"headline": self.headline(results)}

    def combine(self, results: Mapping[str, AnyResults]) -> AnyResults:
        """The comparison of several runs over their seeds, by the path of their folders.

        Raises:
            ValueError: the evaluations do not fit each other, or there is no such comparison.
        """
        raise ValueError(f"expected one run, {self.no_seeds}")


def _nothing(_: Any) -> Iterable[Section | None]:
    return ()


def _quantities(_: Any) -> Mapping[str, tuple[str, str]]:
    return QUANTITIES


@dataclass(frozen=True)
class ResultsView(View[Results]):
    """How :class:`probattn.report.Results` read, or a class of records that inherits from it.

    Attributes:
        results_class: that class.
        sections: further sections of the page, which stand after the comparison.
        package: where their templates are.
        quantities: headings and units of training curves, by the names of the records.
    """

    results_class: type[Results] = Results
    sections: Callable[[Any], Iterable[Section | None]] = _nothing
    package: str | None = None
    quantities: Callable[[Any], Mapping[str, tuple[str, str]]] = _quantities

    def headline(self, results: Results) -> str:
        """Significant gains and losses of the run's own network."""
        return headline(results)

    def table(self, results: Results) -> Sheet:
        """Deterministic against the run's own network, measure by measure."""
        return results_table(results)

    def page(self, results: Results) -> str:
        """The sections of :mod:`probattn.report` and further ones."""
        return render_report(
            results, self.sections(results), package=self.package, quantities=self.quantities(results)
        )

    def summary(self, results: Results) -> dict[str, Any]:
        """The headline, the seeds, and every comparison of the run's own network with its verdict."""
        return {**super().summary(results), "seeds": results.seeds, "comparisons": comparisons(results)}

    def combine(self, results: Mapping[str, Results]) -> Results:
        """Means over seeds, with differences paired by seed."""
        return combine(results)
