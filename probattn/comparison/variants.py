"""Prediction methods ("variants") of one network, their measures and costs, and the records of a comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from filelock import FileLock
from pydantic import Field, TypeAdapter
from torch import Tensor

from probattn.data import TextDataset
from probattn.files.durable import write_atomically
from probattn.files.json_files import JSONError, read_json
from probattn.inference import posterior_expectation
from probattn.inference.laplace import FITTED, FeatureDistance, LastLayerLaplace, energy, last_layer
from probattn.metrics import functional
from probattn.options import DrawingOptions
from probattn.report import Comparison, Predictions
from probattn.report.bootstrap import is_reliable
from probattn.report.columns import ClassMeasures, class_columns, detection
from probattn.report.measures import CLASS_MEASURES, MeasureText, Verdict, share
from probattn.report.record import Count, Record
from probattn.sites.particle_layers import particle_count
from probattn.tasks import load_network
from probattn.tasks.classification.networks import TrainedClassifier
from probattn.tasks.classification.task import Classification
from probattn.tasks.measured import predictions
from probattn.tasks.progress import shown, tracked

ROLES = ("validation", "test", "out_of_domain")
MEASURES: Mapping[str, MeasureText] = MappingProxyType(
    {
        **{name: CLASS_MEASURES[name] for name in ("accuracy", "nll", "ece", "aurc")},
        "coverage": share(
            "Coverage",
            "The largest share of the test texts, the most confident first, whose error is at most the given one",
            short="coverage",
        ),
        "answered": share(
            "Answered by a policy",
            "The share that a policy answers whose target is that error, at 95% confidence",
            short="answered",
            words=("more answers by a policy", "fewer answers by a policy"),
        ),
        "auroc": CLASS_MEASURES["auroc"],
    }
)
"""Measures of a prediction method; ``auroc`` only with out-of-domain data."""


@dataclass
class Variants:
    """Predictions of one network by every prediction method.

    Attributes:
        labels: true classes of the validation and the test data.
        probabilities: class probabilities ``[N, C]``, by prediction method and data set.
        ood_scores: scores ``[N]`` that detect out-of-distribution inputs, by prediction method and data set; methods
            without such scores use the entropy of their probabilities.
        closed_form: share of the test texts whose moments are in closed form; the others are predicted by draws.
    """

    labels: dict[str, Tensor] = field(default_factory=dict)
    probabilities: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    ood_scores: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    closed_form: float | None = None

    def add(self, variant: str, probabilities: Mapping[str, Tensor], **ood_scores: Tensor) -> None:
        """Adds a prediction method."""
        self.probabilities[variant] = dict(probabilities)
        if ood_scores:
            self.ood_scores[variant] = ood_scores

    def scaled(self, variant: str, name: str) -> None:
        """Adds a prediction method with the temperature that fits the validation data best (Guo et al. 2017)."""
        logs = {
            role: probability.double().clamp_min(1e-12).log()
            for role, probability in self.probabilities[variant].items()
        }
        temperature = functional.best_temperature(logs["validation"], self.labels["validation"])
        probabilities = {role: (log / temperature).softmax(dim=-1) for role, log in logs.items()}
        self.add(name, probabilities)

    def measured(self, error: float) -> dict[str, dict[str, float]]:
        """Measures by prediction method; for methods with ``ood_scores`` only the AUROC."""
        measured = {}
        for variant, probabilities in self.probabilities.items():
            measures = figures(probabilities, self.labels, error, self.ood_scores.get(variant))
            measured[variant] = {"auroc": measures["auroc"]} if variant in self.ood_scores else measures
            if variant.startswith("moments") and self.closed_form is not None:
                measured[variant]["closed_form"] = self.closed_form
        return measured


def figures(
    probabilities: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
    error: float,
    ood_scores: Mapping[str, Tensor] | None = None,
) -> dict[str, float]:
    """Measures of one prediction method, see :data:`MEASURES`.

    Args:
        probabilities: class probabilities ``[N, C]`` of "validation", "test" and, if there are such data,
            "out_of_domain".
        labels: true classes of "validation" and "test", integers ``[N]``.
        error: target error rate of the coverage.
        ood_scores: scores of "test" and "out_of_domain" instead of the entropy, larger for out-of-distribution inputs.

    Returns:
        The measures by name, without infinite ones.
    """
    pilot, test = (class_columns(probabilities[role], None, labels[role]) for role in ("validation", "test"))
    wrong = ~test["right"]
    start = functional.sequence_start(pilot["doubt"], ~pilot["right"], error=error)
    policy = functional.controlled_threshold(test["doubt"], wrong, error=error, start=start)
    curve = functional.risk_coverage_curve(test["doubt"], wrong)
    attained = curve.coverage[curve.risk <= error]
    measures: dict[Any, float | None] = {
        **ClassMeasures().figures(test),
        "coverage": float(attained.max()) if len(attained) else 0.0,
        "answered": policy.answered / len(wrong),
    }
    if ood_scores is not None:
        measures["auroc"] = functional.ood_auroc(ood_scores["test"], ood_scores["out_of_domain"]).item()
    elif "out_of_domain" in probabilities:
        outside = class_columns(probabilities["out_of_domain"], None, None)
        measures |= detection(test["uncertainty"], outside["uncertainty"])
    return {name: value for name, value in measures.items() if name in MEASURES and value is not None}


def all_variants(
    task: Classification, network: TrainedClassifier, *, train_texts: int | None = FITTED
) -> Variants:
    """Predicts the validation, test and out-of-domain data of a run by every prediction method that its network has.

    Args:
        task: task of the run.
        network: network of the run.
        train_texts: maximum number of training texts to which the Laplace approximation and the feature distance are
            fitted, always the same ones; None for all.

    Returns:
        The predictions. All networks have "point", and with out-of-domain data "maximum", "energy" and "distance",
        scores that detect out-of-distribution inputs; latent attention has "draws" and "moments", particles "draws",
        deterministic networks with dropout "dropout". Networks without particles have "laplace"; those with particles
        lack "energy". Each method that predicts classes also exists with a temperature: "temperature" for "point",
        "laplace_temperature" and so on. "dropout_information" and "draws_information" detect by the mutual information
        of the draws.
    """
    data = {role: dataset for role, dataset in task.texts.roles().items() if role in ROLES}
    data |= {role: value for role, value in task.measured().items() if role in ROLES}
    variants = Variants({role: torch.tensor(data[role].labels) for role in ("validation", "test")})
    layer = last_layer(network.net, len(task.texts.label_names))
    fitted = {"train": task.texts.train.take(train_texts), **data}
    read = {role: task.features(network, texts) for role, texts in fitted.items()}
    variants.add("point", {role: read[role].logits.softmax(dim=-1) for role in data})
    variants.scaled("point", "temperature")
    several = particle_count(network.program) is not None  # last layers, whose mean has no energy
    if not several:
        laplace = LastLayerLaplace.fit(read["train"], layer)
        variants.add("laplace", {role: laplace.probabilities(read[role]) for role in data})
        variants.scaled("laplace", "laplace_temperature")
    if "out_of_domain" in data:
        distance = FeatureDistance.fit(read["train"])
        pair = {role: read[role] for role in ("test", "out_of_domain")}
        for variant, scores in (
            ("maximum", {role: -value.logits.softmax(dim=-1).amax(dim=-1) for role, value in pair.items()}),
            ("energy", {role: energy(value.logits) for role, value in pair.items()}),
            ("distance", {role: distance(value.inputs) for role, value in pair.items()}),
        ):
            if variant != "energy" or not several:
                variants.add(variant, variants.probabilities["point"], **scores)
    _drawn(task, network, data, variants)
    return variants


def _drawn(
    task: Classification, network: TrainedClassifier, data: Mapping[str, TextDataset], variants: Variants
) -> None:
    """Adds what takes several passes."""
    several = ("draws", "moments") if network.key == "bayesian_mean" else ("draws",)
    for variant in several if network.has_draws else ("dropout",):
        by_role = {role: predicted(task, network, texts, variant) for role, texts in data.items()}
        if variant == "dropout" and by_role["test"].draws is None:
            continue  # nothing drops out
        probabilities = {role: value.probabilities for role, value in by_role.items()}
        variants.add(variant, probabilities)
        variants.scaled(variant, f"{variant}_temperature")
        if variant == "moments":
            variants.closed_form = by_role["test"].closed_form
        elif "out_of_domain" in by_role:
            drawn = {role: by_role[role].draws for role in ("test", "out_of_domain")}
            scores = {
                role: functional.mutual_information(value)
                for role, value in drawn.items()
                if value is not None
            }
            variants.add(f"{variant}_information", probabilities, **scores)


def predicted(
    task: Classification, network: TrainedClassifier, texts: TextDataset, variant: str
) -> Predictions:
    """Predictions of each text in its order; the probabilities of dropout are the means over its draws."""
    batches, back = task.by_length(network, texts)
    options = DrawingOptions(uncertainty="moments" if variant == "moments" else "draws")
    ordered = predictions(network, batches, task.answering.drawing(options))[network.key].rows(back)
    if variant != "dropout" or ordered.draws is None:
        return ordered
    return replace(ordered, probabilities=ordered.draws.mean(dim=0))


def pass_once(task: Classification, network: TrainedClassifier, texts: TextDataset) -> None:
    """One pass without noise over texts."""
    for batch in task.by_length(network, texts)[0]:
        posterior_expectation(network.program, batch).cpu()


class Interval(Record):
    """A mean over seeds, or of a cost over repeats, and its 95% interval (Student's t), None for a single value."""

    mean: float
    low: float | None
    high: float | None
    seeds: Count

    @classmethod
    def over(cls, values: Iterable[float]) -> Interval:
        """Mean and interval of some values."""
        return cls(**functional.mean_interval(values)._asdict())

    def times(self, factor: float) -> Interval:
        """Mean and interval, multiplied by ``factor``."""
        low, high = (None if bound is None else factor * bound for bound in (self.low, self.high))
        return Interval(mean=factor * self.mean, low=low, high=high, seeds=self.seeds)


class Row(Record):
    """Measures of one prediction method with the networks of one recipe.

    Attributes:
        recipe: name of the recipe.
        variant: prediction method; "ensemble" is the mean over the networks of all seeds, one forward pass each.
        cost: time of a prediction, in units of one forward pass of the reference's network; the two are timed
            alternately.
        closed_form: for moments, share of the test texts predicted in closed form; the others are predicted by draws.
        values: measures; only the AUROC for methods that differ only in the detection of out-of-distribution inputs.
        gaps: differences to the reference by measure, paired by seed, with p-values corrected by Holm's method over all
            prediction methods; empty for the reference, the ensemble, and a single seed.
    """

    recipe: str
    variant: str
    cost: Interval
    closed_form: float | None = None
    values: Mapping[str, Interval]
    gaps: Mapping[str, Comparison]


class ComparisonResults(Record):
    """Records of a comparison.

    Attributes:
        kind: "comparison".
        error: target error rate of the coverage.
        reference: recipe and prediction method with which the others are compared.
        methods: description of the attention method, by recipe.
        data: description of the data.
        sizes: number of texts by data set.
        seeds: seeds of the runs.
        set: overrides of the keys of all recipes.
        versions: versions of packages.
        rows: measures, one record per recipe and prediction method.
    """

    kind: Literal["comparison"] = "comparison"
    error: Annotated[float, Field(gt=0, lt=1)]
    reference: tuple[str, str]
    methods: Mapping[str, str]
    data: str
    sizes: Mapping[str, Count]
    seeds: tuple[int, ...]
    set: tuple[str, ...]
    versions: Mapping[str, str]
    rows: tuple[Row, ...]

    def verdict(self, measure: str, gap: Comparison) -> Verdict:
        """Verdict on a difference; "unclear" if it is not significant (:func:`probattn.report.is_reliable`)."""
        roles = ("test", "out_of_domain") if measure == "auroc" else ("test",)
        examples = min(self.sizes[role] for role in roles)
        return MEASURES[measure].verdict(gap.value) if is_reliable(gap, examples) else "unclear"


COSTS = "costs.json"
"""What has been measured, in the folder of a comparison."""
TEXTS, REPEATS = 64, 5
DRAWN = ("dropout", "draws")
PASSES = (*DRAWN, "moments")
Action = Callable[[], object]
Costs = dict[str, dict[str, Interval]]
_FILE = TypeAdapter(tuple[list[str], Costs])


def passes_of(variant: str) -> str:
    """The passes that a variant takes: "dropout", "draws", "moments", or "point" for one without noise."""
    return next((item for item in PASSES if variant == item or variant.startswith(f"{item}_")), "point")


def measured_costs(
    folder: Path,
    networks: Mapping[str, tuple[Classification, Path]],
    variants: Mapping[str, Collection[str]],
    digests: Sequence[str],
) -> Costs:
    """Costs by recipe, the reference's first, and kind of passes; stored ones if variants and ``digests`` match."""
    file = folder / COSTS
    with FileLock(folder / f".{COSTS}.lock"):
        try:
            previous, costs = read_json(file, _FILE)
        except (JSONError, FileNotFoundError):
            previous, costs = [], {}
        needed = {(name, passes_of(variant)) for name, entries in variants.items() for variant in entries}
        if previous != list(digests) or needed != {
            (name, kind) for name, entries in costs.items() for kind in entries
        }:
            costs = _measured(networks, variants)
            write_atomically(file, _FILE.dump_json((list(digests), costs)))
    return costs


def _measured(
    networks: Mapping[str, tuple[Classification, Path]], variants: Mapping[str, Collection[str]]
) -> Costs:
    unit: Action | None = None
    costs: Costs = {}
    for name, (task, folder) in networks.items():
        network, texts = load_network(folder), task.texts.test.take(TEXTS)
        kinds = {passes_of(variant) for variant in variants[name]}
        actions: dict[str, Action] = {
            item: partial(predicted, task, network, texts, item) for item in PASSES if item in kinds
        }
        point = partial(pass_once, task, network, texts)
        if unit is not None:
            actions = {"point": point} | actions
        unit = unit or point
        rounds = tracked(range(REPEATS + 1), f"{name}: cost of a prediction")
        ratios = [_ratios(unit, actions) for _ in rounds][1:]  # the first warms up
        costs[name] = {kind: Interval.over(item[kind] for item in ratios) for kind in ratios[0]}
    return costs


@shown(quiet=True)
def _ratios(unit: Action, actions: Mapping[str, Action]) -> dict[str, float]:
    """How much longer each action takes than the unit, "point" itself unless it is among them, run before and after."""
    before, ratios = _seconds(unit), {"point": 1.0}
    for kind, action in actions.items():
        spent, after = _seconds(action), _seconds(unit)
        ratios[kind] = 2 * spent / (before + after)
        before = after
    # one pass without noise goes along with draws
    drawn = {kind: max(ratios[kind] - ratios["point"], ratios["point"]) for kind in DRAWN if kind in ratios}
    return ratios | drawn


def _seconds(action: Action) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
