"""Numbers for texts or pairs of texts: ratings, relatedness, prices; with intervals."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from statistics import NormalDist
from typing import Any, ClassVar, Literal, Self

import scipy
import torch
from pydantic import Field
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from probattn.checks import shown
from probattn.data import DataError
from probattn.data.corpora import CORPORA, Corpus
from probattn.data.identity import Split
from probattn.inference.posterior import Posterior
from probattn.metrics.functional import interval_coverage, interval_score, interval_stretch
from probattn.options import Filled
from probattn.report import MODEL_TITLES, Listing, ModelKey
from probattn.report.bootstrap import Columns
from probattn.report.measures import MeasureText
from probattn.report.record import Record
from probattn.sites.observation import ObservationNoise
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.answering import HeadDeciding
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded
from probattn.tasks.fine_tuning.recipe import Examples, HeadRecipe, Rows
from probattn.tasks.fine_tuning.task import HeadTask
from probattn.tasks.fine_tuning.texts import TEXTS, TextsSection, texts_of
from probattn.tasks.measures import number, share
from probattn.tasks.sections.base import key

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of the intervals whose coverage is measured."""
NINTH_DECILE = NormalDist().inv_cdf(0.9)
"""Half the width of an 80% interval, in standard deviations of a normal law."""
STATED = (0.8, 0.95)
"""Those that are compared between models."""


def corpus(source: Corpus, split: Split) -> Rows:
    """Pairs of a data set of rows with their numbers."""
    yield from source.by_split()[split]


RELATEDNESS = {**CORPORA["sick"].columns, "label": ("relatedness_score",)}


def _at_level(level: float) -> dict[str, MeasureText]:
    """The measures of the intervals of one level."""
    miss = share(
        f"Coverage error, {level:.0%} intervals",
        f"Distance of the share of numbers inside from {level:.0%}",
        better=False,
    )
    stretched = share(
        f"The same, calibrated ({level:.0%})",
        "After the intervals are stretched as the validation texts ask for",
        better=False,
    )
    score = number(
        f"Interval score, {level:.0%}",
        "Width, and a fine for numbers outside (Gneiting and Raftery 2007), calibrated intervals",
    )
    percent = f"{100 * level:.0f}"
    return {f"miss_{percent}": miss, f"stretched_miss_{percent}": stretched, f"score_{percent}": score}


class RegressionSection(TextsSection):
    """Texts, or pairs of texts, with one number each.

    `sick` and `stsb` are built in: the relatedness of two sentences, 1 to 5 (Marelli et al. 2014), and the similarity
    of STS-B, 0 to 5 (GLUE; Cer et al. 2017).
    """

    named: ClassVar[Any] = {
        "sick": partial(corpus, replace(CORPORA["sick"], columns=RELATEDNESS)),
        "stsb": partial(corpus, CORPORA["stsb"]),
    }
    paired_names: ClassVar[tuple[str, ...]] = ("sick", "stsb")

    label: Filled = key("label", "Column of the numbers.")
    noise: Literal["normal", "student_t"] = key(
        "normal", "Distribution of a number around its prediction; its scale is learned."
    )
    degrees: float = key(4.0, "Degrees of freedom of the noise `student_t`.", gt=0)

    def target(self, value: Any, where: str) -> float:
        """The number."""
        try:
            target = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
        except (TypeError, ValueError):
            target = math.nan
        if not math.isfinite(target):
            raise DataError(
                f"{where}: expected a number in {self.label!r}, got {shown(value)}; correct it or remove the row"
            )
        return target


class RegressionRecipe(HeadRecipe):
    """All that a run on texts with numbers depends on."""

    regression: RegressionSection = Field(description="The texts and their numbers.")


class NumberAnswer(Record):
    """What is stored of a predicted number."""

    prediction: float
    lower_80: float
    upper_80: float


class NumbersDeciding(HeadDeciding):
    """Decisions about a number by the width of its interval."""

    record = NumberAnswer
    needs_draws = "all its intervals are as wide"

    def within(self, tolerance: float | None) -> Self:
        """The same with a tolerance, which it needs; see the base class."""
        if tolerance is None:
            raise RunError(
                "--tolerance: expected how far from the true number a predicted one may be, got none; give it"
            )
        self.tolerance, self.wrong_when = (
            tolerance,
            f"it is more than {tolerance:g} away from the true number",
        )
        return self

    def read(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """With the probability of an error beyond the tolerance, of a normal law as wide as its interval."""
        scale = max((answer["upper_80"] - answer["lower_80"]) / (2 * NINTH_DECILE), sys.float_info.min)
        assert self.tolerance is not None
        risk = math.erfc(self.tolerance / (math.sqrt(2) * scale))
        return {**answer, "uncertainty": risk, "scale": scale}

    def wrong(self, answer: Mapping[str, Any], truth: Any) -> bool:
        """Whether it is farther from the true number than the tolerance."""
        assert self.tolerance is not None
        return bool(abs(answer["prediction"] - truth) > self.tolerance)


class Regression(HeadTask):
    """Regression: a number for each text, with intervals, by a network with one output."""

    section = "regression"
    recipe_class = RegressionRecipe
    decides = NumbersDeciding
    unit = "texts"
    inputs = TEXTS
    auto = AutoModelForSequenceClassification
    calibrates = True
    measures: ClassVar[Any] = {
        "rmse": number("Root mean squared error", "In units of the numbers", short="RMSE"),
        "pearson": number("Pearson correlation", "Of predictions and numbers", better=True),
        "spearman": number("Spearman correlation", "Of the ranks of predictions and numbers", better=True),
        "nll": number("Negative log-likelihood", "Of the numbers, nats per text", short="NLL"),
        **{name: text for level in STATED for name, text in _at_level(level).items()},
    }
    headings: ClassVar[Any] = {
        "text": "Text",
        "pair": "Second text",
        "truth": "True number",
        "prediction": "Prediction",
        "lower_80": "80% from",
        "upper_80": "to",
        "std": "Std of draws",
    }
    ranked_by = "std"
    detects_by = "standard deviation of draws"

    def head_options(self) -> Mapping[str, Any]:
        """Configuration of a network with one output."""
        return {"num_labels": 1, "problem_type": "regression"}

    def prepare(self, net: PreTrainedModel) -> None:
        """Stores mean and standard deviation of the training targets in the network, to standardise targets."""
        net.config.label_mean, net.config.label_std = self._standard

    @cached_property
    def _standard(self) -> tuple[float, float]:
        targets = torch.tensor([example["target"] for example in self.examples["train"]], dtype=torch.float64)
        deviation = targets.std().item() if len(targets) > 1 else 0.0
        return targets.mean().item(), deviation or 1.0

    def program_of(self, net: nn.Module, **options: Any) -> Any:
        """The program of a regression network; see :meth:`HeadTask.program_of`."""
        section = self.section_of_examples
        return super().program_of(
            net, noise=ObservationNoise(section.noise, degrees=section.degrees), **options
        )

    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Tokens of texts, with standardised targets."""
        encoded = []
        for example, inputs in zip(examples, self.section_of_examples.tokens(codec, examples), strict=True):
            if "target" in example:
                mean, deviation = self._standard
                inputs["labels"] = (example["target"] - mean) / deviation
            encoded.append(Encoded([inputs]))
        return encoded

    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """Columns of predictions, targets, ends of intervals and other quantities, in the unit of the targets."""
        predicted = in_units(posterior, batch)
        target = torch.tensor([example["target"] for example in batch.examples], dtype=torch.float64)
        draws = predicted.logits[:, :, 0].double()
        assert predicted.noise is not None
        density = predicted.noise.log_density(target - draws)
        return {
            "prediction": draws.mean(dim=0),
            "target": target,
            "nll": math.log(len(draws)) - density.logsumexp(dim=0),
            "std": predicted.std[:, 0].double(),
            "ends": torch.stack([predicted.interval(level)[:, :, 0].double().T for level in LEVELS], dim=1),
        }

    def calibrated(self, columns: Columns, held_out: Columns) -> Columns:
        """Columns with intervals that are stretched about their middle to cover the validation targets.

        They are NaN at levels that need more validation targets.
        """
        ends = columns["ends"].clone()
        for index, level in enumerate(LEVELS):
            factor = interval_stretch(held_out["ends"][:, index].T, held_out["target"], level).item()
            middle, half = ends[:, index].mean(dim=1), (ends[:, index, 1] - ends[:, index, 0]) / 2
            factor = factor if math.isfinite(factor) else math.nan
            ends[:, index] = torch.stack([middle - factor * half, middle + factor * half], dim=1)
        return {**columns, "stretched": ends}

    def figures(self, columns: Columns) -> dict[str, float | None]:
        """Measures of the texts in ``columns``."""
        prediction, target = columns["prediction"].numpy(), columns["target"].numpy()
        varied = len(set(prediction.tolist())) > 1 and len(set(target.tolist())) > 1
        measures: dict[str, float | None] = {
            "rmse": math.sqrt(((prediction - target) ** 2).mean()),
            "pearson": float(scipy.stats.pearsonr(prediction, target).statistic) if varied else None,
            "spearman": float(scipy.stats.spearmanr(prediction, target).statistic) if varied else None,
            "nll": columns["nll"].mean().item(),
        }
        for level in STATED:
            index, percent = LEVELS.index(level), f"{100 * level:.0f}"
            for prefix, ends in (("", "ends"), ("stretched_", "stretched")):
                inside = coverage(columns, ends, index)
                measures[f"{prefix}coverage_{percent}"] = inside
                measures[f"{prefix}miss_{percent}"] = None if inside is None else abs(inside - level)
            score = interval_score(columns["stretched"][:, index].T, columns["target"], level).mean().item()
            measures[f"score_{percent}"] = None if math.isnan(score) else score
        return measures

    def listings(self, columns: Mapping[ModelKey, Columns]) -> Iterable[Listing]:
        """Table of coverage and width of the intervals, before and after stretching."""
        rows = []
        for model, column in columns.items():
            for index, level in enumerate(LEVELS):
                cells = []
                for ends in ("ends", "stretched"):
                    inside = coverage(column, ends, index)
                    width = (column[ends][:, index, 1] - column[ends][:, index, 0]).mean().item()
                    cells += ["", ""] if inside is None else [f"{inside:.1%}", f"{width:.3f}"]
                rows.append((MODEL_TITLES[model], f"{level:.0%}", *cells))
        yield Listing(
            title="Intervals",
            headings=("Attention", "Level", "Coverage", "Width", "Coverage, calibrated", "Width, calibrated"),
            rows=tuple(rows),
            about="The share of test numbers inside. Calibrated intervals are stretched about their middle by the "
            "factor that the validation texts ask for (split conformal prediction, Lei et al. 2018). It is undefined "
            "with fewer than 19 validation texts at 95%, 9 at 90%, 4 at 80%.",
        )

    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """The predicted number of each text, its 80% interval, and the standard deviation over draws."""
        predicted = in_units(posterior, batch)
        lower, upper = predicted.interval(0.8)[:, :, 0].tolist()
        rows = zip(
            batch.examples,
            predicted.mean[:, 0].tolist(),
            lower,
            upper,
            predicted.std[:, 0].tolist(),
            strict=True,
        )
        return [
            {**texts_of(example), "prediction": mean, "lower_80": low, "upper_80": high, "std": std}
            for example, mean, low, high, std in rows
        ]

    def truth(self, example: Mapping[str, Any]) -> str:
        """The true number, as text."""
        return f"{example['target']:.15g}"


def in_units(posterior: Posterior, batch: Batch) -> Posterior:
    """Predictions of standardised numbers, in units of the numbers."""
    mean, deviation = batch.config.label_mean, batch.config.label_std
    assert posterior.noise is not None
    noise = replace(posterior.noise, scale=posterior.noise.scale.detach().cpu().double() * deviation)
    return replace(posterior, logits=posterior.logits.double() * deviation + mean, noise=noise)


def coverage(columns: Columns, ends: str, index: int) -> float | None:
    """Share of the numbers inside the intervals of a level; None where these are NaN."""
    intervals = columns[ends][:, index].T
    return None if intervals.isnan().any() else interval_coverage(intervals, columns["target"]).item()
