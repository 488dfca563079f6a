"""What tasks share that have measures of their own: predictions, their records, how these read, and runs over seeds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor

from probattn.inference.posterior import Posterior
from probattn.inference.predictive import posterior_expectation, posterior_predict
from probattn.metrics.functional.calibration import BinSums
from probattn.report import Curve, ModelKey, RunDescription, Sheet, training_curves
from probattn.report.evaluation import reliability_bins
from probattn.report.measures import MeasureText, within
from probattn.tasks.fine_tuning.page import headline, render, results_sheet
from probattn.tasks.fine_tuning.results import (
    Columns,
    Figures,
    MeasuredResults,
    MeasuredScores,
    combine,
    compare,
)
from probattn.tasks.programs import AnyData, Network, Program, ProgramTask
from probattn.tasks.task import AnyRecipe
from probattn.tasks.topics import TopicData, measure_topics

AnyMeasured = TypeVar("AnyMeasured", bound=MeasuredResults)


class MeasuredTask(
    ProgramTask[AnyRecipe, AnyMeasured, AnyData, Program], Generic[AnyRecipe, AnyMeasured, AnyData, Program]
):
    """A task of one network whose results are measures of its own.

    Attributes:
        measures: what is measured, the most important first; of shares and numbers, with their direction.
    """

    measures: ClassVar[Mapping[str, MeasureText]]

    @abstractmethod
    def topic_data(self, networks: Sequence[Network[Program]]) -> TopicData:
        """Test examples as the topics of the report read them."""

    def curves(self, network: Network[Program]) -> Sequence[Curve]:
        """Training curves of a network."""
        return training_curves(network.records, network.key)

    def bins(self, columns: Columns) -> BinSums | None:
        """Sums over bins of confidence, behind the reliability diagram; None for none."""
        return None

    def results_of(
        self,
        run: RunDescription,
        networks: Sequence[Network[Program]],
        table: Mapping[tuple[str, ModelKey], Columns],
        figures: Figures,
        *,
        seed: int,
        clusters: Mapping[str, Sequence[Hashable]] | None = None,
        **more: Any,
    ) -> AnyMeasured:
        """The records of networks that were measured.

        Args:
            run: what was run.
            networks: as :meth:`measure` is given them.
            table: what the measures are computed from, by data set and model.
            figures: the measures of columns, and further figures that are not compared.
            seed: of the resamples behind the comparisons.
            clusters: the cluster of each example, by data set, where examples depend on each other.
            **more: what else the records hold, such as ``data``.
        """

        def compared(columns: Columns) -> dict[str, float | None]:
            return {name: value for name, value in figures(columns).items() if name in self.measures}

        def reliability(columns: Columns) -> Any:
            sums = self.bins(columns)
            return () if sums is None else reliability_bins(sums)

        report = self.recipe.report
        records = self.results_class(
            kind=str(self.section),
            run=run,
            scores=tuple(
                MeasuredScores(
                    model=model, data=data, values=figures(columns), reliability=reliability(columns)
                )
                for (data, model), columns in table.items()
            ),
            differences=compare(
                table,
                compared,
                clusters=clusters,
                resamples=report.resamples,
                level=report.level,
                seed=seed,
            ),
            curves=tuple(curve for network in networks for curve in self.curves(network)),
            **measure_topics(networks, self.topic_data(networks)),
            **more,
        )
        return cast(AnyMeasured, records)

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
        text = cls.measures.get(str(cls.head_measure()))
        words = "accuracy" if text is None else within(text.title)
        return render(results, cls.measures, cls.unit, head_measure=words)

    @classmethod
    def head_measure(cls) -> str | None:
        """The measure that is taken without each head: the first share that is better when higher; None for none."""
        shares = (
            name for name, text in cls.measures.items() if (text.unit, text.better) == ("share", "higher")
        )
        return next(shares, None)

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


Read = Callable[[Mapping[str, Tensor]], Tensor]
"""A prediction as a function of a batch: a program, or a part of what one predicts."""


def posterior_of(
    network: Network[Any], read: Read, inputs: Mapping[str, Tensor], options: Any, number: int
) -> Posterior:
    """What a network predicts of a batch: draws of latent attention, or the one prediction without.

    Args:
        network: whose program has a ``link``.
        read: the program, or a part of what it predicts.
        inputs: of the batch, on the network's device.
        options: with ``num_samples``, ``seed`` and ``chunk_size``.
        number: of the batch, from which its draws are seeded.

    Returns:
        The predictions, on the CPU.
    """
    if network.key != "bayesian_mean":
        return expected_of(network, read, inputs)
    drawn = posterior_predict(
        read, inputs, options.num_samples, seed=(options.seed, number), chunk_size=options.chunk_size
    )
    return _posterior(network, drawn.logits)


def expected_of(network: Network[Any], read: Read, inputs: Mapping[str, Tensor]) -> Posterior:
    """The prediction of one pass, which takes latent attention at its expectation."""
    with torch.no_grad():
        return _posterior(network, read(inputs)[None])


def posteriors_of(
    network: Network[Any], read: Read, inputs: Mapping[str, Tensor], options: Any, number: int
) -> dict[ModelKey, Posterior]:
    """The same by model, of latent attention at its expectation too."""
    found: dict[ModelKey, Posterior] = {network.key: posterior_of(network, read, inputs, options, number)}
    if network.key == "bayesian_mean":
        found["bayesian_expectation"] = _posterior(network, posterior_expectation(read, inputs)[None])
    return found


def _posterior(network: Network[Any], logits: Tensor) -> Posterior:
    return Posterior(logits.cpu(), link=network.program.link, noise=getattr(network.program, "noise", None))


def joined(parts: Sequence[Columns], order: Sequence[int]) -> dict[str, Tensor]:
    """Columns of batches together, their rows put back from the order in which they were computed.

    Example:
        >>> joined([{"place": torch.tensor([2, 0])}, {"place": torch.tensor([1])}], [2, 0, 1])["place"]
        tensor([0, 1, 2])
    """
    back = torch.tensor(order).argsort()
    return {name: torch.cat([part[name] for part in parts])[back] for name in parts[0]}
