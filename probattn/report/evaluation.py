"""From probabilities and labels to scores and differences, and the choice of single inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probattn.inference.moments import Moments
from probattn.metrics.functional import bin_index, predictive_entropy
from probattn.report import record
from probattn.report.attention import Example
from probattn.report.bootstrap import Columns, Figures, Rows, paired_bootstrap, selected
from probattn.report.columns import THRESHOLDS, ClassMeasures, class_columns, detection
from probattn.report.measures import CLASS_MEASURES


@dataclass(frozen=True)
class Predictions:
    """Predictions of one model on one data set.

    Attributes:
        probabilities: class probabilities ``[N, C]``, the prediction that is scored.
        draws: class probabilities ``[P, N, C]`` for PAvPU and mutual information; None without draws.
        source: origin of the draws: the posterior, dropout, or the closed form (``"moments"``), as points.
        closed_form: with ``"moments"``, share of examples predicted in closed form; the others are predicted by draws.

    Raises:
        ValueError: the shapes do not fit, or only one of ``draws`` and ``source`` is set.
    """

    probabilities: Tensor
    draws: Tensor | None = None
    source: record.DrawsSource | None = None
    closed_form: float | None = None

    def __post_init__(self) -> None:
        if self.probabilities.dim() != 2 or not len(self.probabilities):
            raise ValueError(
                f"Predictions: expected probabilities [N, C], got {list(self.probabilities.shape)}"
            )
        if (self.draws is None) != (self.source is None):
            raise ValueError(
                f"Predictions: expected draws and their source together, got source={self.source!r}"
            )
        if self.draws is not None and self.draws.shape[1:] != self.probabilities.shape:
            raise ValueError(
                f"Predictions: expected draws [P, {', '.join(map(str, self.probabilities.shape))}], "
                f"got {list(self.draws.shape)}"
            )

    @classmethod
    def from_draws(cls, draws: Tensor) -> Predictions:
        """Predictions from posterior draws ``[P, N, C]``; their mean is scored.

        Example:
            >>> Predictions.from_draws(torch.tensor([[[0.2, 0.8]], [[0.4, 0.6]]])).probabilities
            tensor([[0.3000, 0.7000]], dtype=torch.float64)
        """
        draws = draws.double()
        return cls(draws.mean(dim=0), draws, "posterior")

    @classmethod
    def from_moments(
        cls, moments: Moments, num_samples: int, closed_form: float | None = None
    ) -> Predictions:
        """Predictions in closed form, with max(num_samples, K + 1) points as draws for K leading classes."""
        points = moments.draws(max(num_samples, moments.classes.shape[-1] + 1)).probabilities
        return cls(moments.mean_probabilities.cpu().double(), points.cpu().double(), "moments", closed_form)

    def rows(self, order: Tensor) -> Predictions:
        """The same predictions for a selection or another order of examples, indices int64 ``[N]``."""
        draws = None if self.draws is None else self.draws[:, order]
        return Predictions(self.probabilities[order], draws, self.source, self.closed_form)


@dataclass(frozen=True)
class PredictedData:
    """A data set with the predictions of all models.

    Attributes:
        data: description of the data set.
        labels: integer labels ``[N]``; None without labels.
        models: predictions by model.

    Raises:
        ValueError: the numbers of examples differ.
    """

    data: record.DataSet
    labels: Tensor | None
    models: Mapping[record.ModelKey, Predictions]

    def __post_init__(self) -> None:
        sizes = {model: len(predictions.probabilities) for model, predictions in self.models.items()}
        sizes_with_labels = set(sizes.values()) | ({len(self.labels)} if self.labels is not None else set())
        if sizes_with_labels != {self.data.size}:
            labels = None if self.labels is None else len(self.labels)
            raise ValueError(
                f"PredictedData {self.data.key!r}: expected {self.data.size} examples everywhere, got {sizes} and "
                f"{labels} labels"
            )
        if self.data.labelled != (self.labels is not None):
            raise ValueError(
                f"PredictedData {self.data.key!r}: labelled={self.data.labelled} contradicts the labels"
            )


class Evaluation(NamedTuple):
    """Scores of every model on every data set, and their differences to the baseline."""

    scores: tuple[record.Scores, ...]
    differences: tuple[record.Difference, ...]


def evaluate(
    predicted: Sequence[PredictedData],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    num_bins: int = 10,
    thresholds: Sequence[float] = THRESHOLDS,
    asked: Sequence[record.ClassMeasure] = (),
) -> Evaluation:
    """Measures every model on every data set, and compares each with the deterministic one.

    Data sets that are not in domain also get AUROC and FPR95 of their detection by predictive entropy against the first
    in-domain set. Differences have intervals and p-values of :func:`paired_bootstrap`; the p-values are corrected over
    all comparisons of a model, the intervals are not. For detection, in-domain and out-of-distribution examples are
    drawn independently. The intervals reflect the sampling of test examples; they take the trained networks, of one
    seed, as given. A calibration error is biased upwards on a resample, more so if it is small, which biases intervals
    of its differences towards 0.

    Args:
        predicted: the data sets with their predictions.
        resamples: number of bootstrap resamples.
        level: level of the intervals.
        seed: seed of the resampling.
        num_bins: number of bins of the reliability diagram and of calibration and overconfidence errors.
        thresholds: p-values of the PAvPU curve.
        asked: further measures of the predicted classes: "matthews", "f1".

    Returns:
        Records of scores and differences.

    Raises:
        ValueError: there is no in-domain data set, resamples is below 1, or level is outside (0, 1).

    Example:
        >>> from probattn.report import DataSet
        >>> data = DataSet(key="test", title="Test", role="in_domain", size=4, labelled=True)
        >>> sure = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
        >>> measured = PredictedData(data, torch.tensor([0, 0, 1, 1]), {"deterministic": Predictions(sure)})
        >>> evaluate([measured]).scores[0].values["accuracy"]
        0.75
    """
    if not any(item.data.role == "in_domain" for item in predicted):
        raise ValueError("evaluate: expected a data set of role 'in_domain', got none")
    models = [(item, model, values) for item in predicted for model, values in item.models.items()]
    measures = ClassMeasures(
        num_bins, thresholds, asked, models[0][2].probabilities.shape[-1] if models else 0
    )
    return evaluate_columns(
        {
            (item.data.key, model): class_columns(values.probabilities, values.draws, item.labels)
            for item, model, values in models
        },
        [item.data for item in predicted],
        measures.figures,
        CLASS_MEASURES,
        curves=measures.curves,
        sources={(item.data.key, model): values.source for item, model, values in models},
        resamples=resamples,
        level=level,
        seed=seed,
    )


def evaluate_columns(
    table: Mapping[tuple[str, record.ModelKey], Columns],
    data: Sequence[record.DataSet],
    figures: Figures,
    measures: Collection[str],
    *,
    curves: Callable[[Columns], Mapping[str, Any]] = lambda _: {},
    sources: Mapping[tuple[str, record.ModelKey], record.DrawsSource | None] = MappingProxyType({}),
    clusters: Mapping[str, Sequence[Hashable]] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """:func:`evaluate` for measures that are functions of columns, tensors ``[N, ...]`` by name.

    Args:
        table: columns by data set and model; the column "uncertainty", if any, detects data outside the domain.
        data: the data sets.
        figures: function of columns that returns numbers by name.
        measures: names of the numbers of ``figures`` that are compared with the baseline.
        curves: function of columns that returns fields of :class:`Scores` for charts.
        sources: source of the draws, by data set and model.
        clusters: the cluster of each example, by data set, if examples depend on each other.
        resamples: number of bootstrap resamples.
        level: level of the intervals.
        seed: seed of the resampling.

    Raises:
        ValueError: resamples is below 1, or level is outside (0, 1).
    """
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"evaluate: expected resamples >= 1 and 0 < level < 1, got {resamples} and {level}")
    in_domain = next((item.key for item in data if item.role == "in_domain"), None)
    outside = {item.key for item in data if item.role != "in_domain"}

    def measured(key: str, model: record.ModelKey, rows: Rows) -> dict[str, float | None]:
        columns, reference = selected(table[key, model], rows.get(key)), table.get((str(in_domain), model))
        values = dict(figures(columns))
        if key in outside and "uncertainty" in columns and "uncertainty" in (reference or ()):
            assert reference is not None
            inside = selected({"uncertainty": reference["uncertainty"]}, rows.get(str(in_domain)))
            values |= detection(inside["uncertainty"], columns["uncertainty"])
        return values

    def compared(key: str, model: record.ModelKey, rows: Rows) -> dict[str, float | None]:
        values = measured(key, model, rows)
        return {name: values[name] for name in measures if name in values}

    scores = []
    for key, model in ((item.key, model) for item in data for model in record.MODELS):
        if (key, model) in table:
            drawn, values = sources.get((key, model)), measured(key, model, {})
            charts = curves(table[key, model])
            scores.append(record.Scores(model=model, data=key, values=values, draws=drawn, **charts))
    sizes = {key: len(next(iter(columns.values()))) for (key, _), columns in table.items()}
    options: dict[str, Any] = {"clusters": clusters, "resamples": resamples, "level": level, "seed": seed}
    return Evaluation(tuple(scores), paired_bootstrap(list(table), compared, sizes, **options))


SHOWN_DRAWS = 100
"""Maximum number of draws in the record of an example."""


def describe(
    item: PredictedData,
    rows: Sequence[int],
    texts: Sequence[str],
    classes: Sequence[str],
    pairs: Sequence[str] | None = None,
) -> list[Example]:
    """Records of single inputs with the prediction of the run's network, not of its baseline.

    Args:
        item: predictions: ``"bayesian_mean"`` with draws, or those of a network without draws, or else
            ``"deterministic"``; beside other predictions, ``"deterministic"`` is shown as the baseline.
        rows: indices of the inputs.
        texts: all N inputs of the data set, as text.
        classes: names of the C classes.
        pairs: the second texts of all N inputs, if they are pairs.

    Returns:
        One record per index.

    Raises:
        ValueError: there are no such predictions, or the numbers of texts, second texts or classes do not fit.
    """
    predictions = _own(item)
    expected = tuple(predictions.probabilities.shape)
    if (len(texts), len(classes)) != expected:
        raise ValueError(
            f"describe: expected {expected[0]} texts and {expected[1]} class names for {item.data.key!r}, "
            f"got {len(texts)} and {len(classes)}"
        )
    if pairs is not None and len(pairs) != len(texts):
        raise ValueError(
            f"describe: expected {len(texts)} second texts for {item.data.key!r}, got {len(pairs)}"
        )
    return [_example(item, row, texts[row], None if pairs is None else pairs[row], classes) for row in rows]


def _example(item: PredictedData, row: int, text: str, pair: str | None, classes: Sequence[str]) -> Example:
    predictions, baseline = _own(item), item.models.get("deterministic")
    if baseline is predictions:
        baseline = None
    probabilities = predictions.probabilities[row].cpu().double().clamp(0, 1)
    predicted = int(probabilities.argmax())
    draws = torch.zeros(0, dtype=torch.float64)
    if predictions.source != "dropout" and predictions.draws is not None:
        draws = predictions.draws[:, row, predicted].cpu().double().clamp(0, 1)
    base = None if baseline is None else baseline.probabilities[row].cpu().double().clamp(0, 1)
    return Example(
        data=item.data.key,
        index=row,
        text=text,
        pair=pair,
        label=None if item.labels is None else classes[int(item.labels[row])],
        predicted=classes[predicted],
        probability=probabilities[predicted].item(),
        spread=draws.std().item() if len(draws) > 1 else 0.0,
        entropy=predictive_entropy(probabilities[None], validate_args=False).item(),
        draws=tuple(draws[:SHOWN_DRAWS].tolist()),
        baseline_predicted=None if base is None else classes[int(base.argmax())],
        baseline_probability=None if base is None else base.max().item(),
        baseline_same=None if base is None else base[predicted].item(),
    )


def _own(item: PredictedData) -> Predictions:
    """Predictions of the run's own network, not of its baseline."""
    preferred: tuple[record.ModelKey, ...] = ("bayesian_mean", *record.SINGLE, "deterministic")
    predictions = next((item.models[model] for model in preferred if model in item.models), None)
    if predictions is None or ("bayesian_mean" in item.models and predictions.draws is None):
        raise ValueError(
            f"describe: expected predictions of {item.data.key!r}, Bayesian ones with their posterior draws, got none"
        )
    return predictions


def most_uncertain(item: PredictedData, count: int) -> list[int]:
    """Indices of the ``count`` examples with the highest predictive entropy, highest first; ties in order of index."""
    entropy = predictive_entropy(_own(item).probabilities.double())
    return entropy.argsort(descending=True, stable=True)[:count].tolist()


def confident_mistakes(item: PredictedData, count: int) -> list[int]:
    """Indices of the ``count`` wrong predictions with the highest probability, highest first; empty without labels."""
    return _mistakes(item)[0][:count].tolist()


def mistakes_by_bin(item: PredictedData, count: int, num_bins: int = 10) -> list[int]:
    """Indices of up to ``count`` wrong predictions in each bin of the reliability diagram, most confident first."""
    rows, confidence = _mistakes(item)
    bins = bin_index(confidence, num_bins)
    return [row for index in range(num_bins - 1, -1, -1) for row in rows[bins == index][:count].tolist()]


def _mistakes(item: PredictedData) -> tuple[Tensor, Tensor]:
    """Rows predicted wrongly and their probabilities, the most confident first; none without labels."""
    confidence, predicted = _own(item).probabilities.cpu().double().max(dim=-1)
    labels = predicted if item.labels is None else item.labels.cpu()
    wrong = torch.nonzero(predicted != labels).flatten()
    order = confidence[wrong].argsort(descending=True, stable=True)
    return wrong[order], confidence[wrong][order]
