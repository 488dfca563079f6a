"""The ways of predicting with one network, and what they are measured by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from probattn.data import TextDataset
from probattn.inference import posterior_expectation
from probattn.inference.last_layer import (
    FITTED,
    FeatureDistance,
    LastLayerLaplace,
    energy,
    last_layer,
)
from probattn.metrics.functional import (
    best_temperature,
    controlled_threshold,
    mutual_information,
    ood_auroc,
    risk_coverage_curve,
    sequence_start,
)
from probattn.report import Predictions
from probattn.report.columns import ClassMeasures, class_columns, detection
from probattn.report.measures import CLASS_MEASURES, MeasureText
from probattn.tasks.classification.networks import TrainedClassifier
from probattn.tasks.classification.task import Classification
from probattn.tasks.networks import predictions

PARTS = ("validation", "test", "out_of_domain")
MEASURES: Mapping[str, MeasureText] = MappingProxyType(
    {
        **{name: CLASS_MEASURES[name] for name in ("accuracy", "nll", "ece", "aurc")},
        "coverage": MeasureText(
            "Coverage",
            "coverage",
            "The largest share of the test texts, the most confident first, whose error is at most the given one",
            "higher",
            "share",
            "higher coverage",
            "lower coverage",
        ),
        "answered": MeasureText(
            "Answered by a policy",
            "answered",
            "The share that a policy answers which promises that error with 95% confidence",
            "higher",
            "share",
            "more answers by a policy",
            "fewer answers by a policy",
        ),
        "auroc": CLASS_MEASURES["auroc"],
    }
)
"""What a way of predicting is measured by; ``auroc`` where there are out-of-domain data."""
BINS = 10


@dataclass
class Ways:
    """Predictions of one network in every way.

    Attributes:
        labels: true classes of the validation and the test data.
        probabilities: by way and data set, ``[N, C]``.
        ood_scores: by way and data set, scores by which out-of-distribution inputs are detected, ``[N]``; where a way
            has none, the entropy of its probabilities serves.
        closed_form: share of the test texts whose moments are in closed form; draws replace the others.
    """

    labels: dict[str, Tensor] = field(default_factory=dict)
    probabilities: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    ood_scores: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    closed_form: float | None = None

    def add(self, way: str, found: Mapping[str, Tensor], **ood_scores: Tensor) -> None:
        """Adds a way of predicting."""
        self.probabilities[way] = dict(found)
        if ood_scores:
            self.ood_scores[way] = ood_scores

    def scaled(self, way: str, name: str) -> None:
        """Adds a way with the temperature that fits its validation data best (Guo et al. 2017)."""
        logs = {
            part: probability.double().clamp_min(1e-12).log()
            for part, probability in self.probabilities[way].items()
        }
        temperature = best_temperature(logs["validation"], self.labels["validation"])
        found = {part: (log / temperature).softmax(dim=-1) for part, log in logs.items()}
        self.add(name, found)

    def measured(self, error: float) -> dict[str, dict[str, float]]:
        """Figures by way; of a way with scores of its own the AUROC alone, all else is another's."""
        measured = {}
        for way, found in self.probabilities.items():
            own = figures(found, self.labels, error, self.ood_scores.get(way))
            measured[way] = {"auroc": own["auroc"]} if way in self.ood_scores else own
            if way.startswith("moments") and self.closed_form is not None:
                measured[way]["closed_form"] = self.closed_form
        return measured


def figures(
    probabilities: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
    error: float,
    ood_scores: Mapping[str, Tensor] | None = None,
) -> dict[str, float]:
    """What one way of predicting is measured by, see :data:`MEASURES`.

    Args:
        probabilities: of "validation" and "test", and of "out_of_domain" where there are such data, ``[N, C]``.
        labels: of the first two, integers ``[N]``.
        error: at which is asked how much can be answered.
        ood_scores: scores of test and out-of-domain data in place of the entropy, larger out of the distribution.

    Returns:
        The figures by name; one that is infinite is left out.
    """
    pilot, own = (class_columns(probabilities[part], None, labels[part]) for part in ("validation", "test"))
    wrong = ~own["right"]
    start = sequence_start(pilot["doubt"], ~pilot["right"], error=error)
    policy = controlled_threshold(own["doubt"], wrong, error=error, start=start)
    curve = risk_coverage_curve(own["doubt"], wrong)
    kept = curve.coverage[curve.risk <= error]
    found: dict[Any, float | None] = {
        **ClassMeasures(BINS).figures(own),
        "coverage": float(kept.max()) if len(kept) else 0.0,
        "answered": policy.answered / len(wrong),
    }
    if ood_scores is not None:
        found["auroc"] = ood_auroc(ood_scores["test"], ood_scores["out_of_domain"]).item()
    elif "out_of_domain" in probabilities:
        outside = class_columns(probabilities["out_of_domain"], None, None)
        found |= detection(own["uncertainty"], outside["uncertainty"])
    return {name: value for name, value in found.items() if name in MEASURES and value is not None}


def all_ways(task: Classification, network: TrainedClassifier, *, train_texts: int | None = FITTED) -> Ways:
    """Predicts the validation, test and out-of-domain data of a run in every way that its network has.

    Args:
        task: of the run.
        network: deterministic, or with latent attention.
        train_texts: most training texts that Laplace's approximation and the distance of features are fitted to, a
            fixed choice; None for all.

    Returns:
        The predictions: "point" and "laplace"; "maximum", "energy" and "distance", which differ in how they detect
        out-of-distribution inputs; of deterministic networks with dropout "dropout"; of latent attention "draws" and
        "moments". Those by which classes are predicted are there with a temperature too, "temperature" for "point" and
        else "laplace_temperature" and so on; "information" after "dropout_" or "draws_" detects out-of-distribution
        inputs by the mutual information of the draws.
    """
    data = {part: role for part, role in task.texts.roles().items() if part in PARTS}
    data |= {part: value for part, value in task.measured().items() if part in PARTS}
    found = Ways({part: torch.tensor(data[part].labels) for part in ("validation", "test")})
    layer = last_layer(network.net, len(task.texts.label_names))
    fitted = {"train": task.texts.train.take(train_texts), **data}
    read = {part: task.features(network, texts) for part, texts in fitted.items()}
    found.add("point", {part: read[part].logits.softmax(dim=-1) for part in data})
    found.scaled("point", "temperature")
    laplace = LastLayerLaplace.fit(read["train"], layer)
    found.add("laplace", {part: laplace.probabilities(read[part]) for part in data})
    found.scaled("laplace", "laplace_temperature")
    if "out_of_domain" in data:
        distance = FeatureDistance.fit(read["train"])
        pair = {part: read[part] for part in ("test", "out_of_domain")}
        for way, scores in (
            ("maximum", {part: -value.logits.softmax(dim=-1).amax(dim=-1) for part, value in pair.items()}),
            ("energy", {part: energy(value.logits) for part, value in pair.items()}),
            ("distance", {part: distance(value.inputs) for part, value in pair.items()}),
        ):
            found.add(way, found.probabilities["point"], **scores)
    _drawn(task, network, data, found)
    return found


def _drawn(
    task: Classification, network: TrainedClassifier, data: Mapping[str, TextDataset], found: Ways
) -> None:
    """Adds what takes several passes."""
    latent = network.key == "bayesian_mean"
    for way in ("draws", "moments") if latent else ("dropout",):
        own = {part: predicted(task, network, texts, way) for part, texts in data.items()}
        if way == "dropout" and own["test"].draws is None:
            continue  # nothing drops out
        kept = {part: value.probabilities for part, value in own.items()}
        found.add(way, kept)
        found.scaled(way, f"{way}_temperature")
        if way == "moments":
            found.closed_form = own["test"].closed_form
        elif "out_of_domain" in own:
            drawn = {part: own[part].draws for part in ("test", "out_of_domain")}
            scores = {part: mutual_information(value) for part, value in drawn.items() if value is not None}
            found.add(f"{way}_information", kept, **scores)


def predicted(task: Classification, network: TrainedClassifier, texts: TextDataset, way: str) -> Predictions:
    """Predictions of each text in its order; the probabilities of dropout are the means over its draws."""
    batches, back = task.by_length(network, texts)
    options: dict[str, Any] = {"uncertainty": ("moments",)} if way == "moments" else {}
    prediction = task.recipe.prediction
    found = predictions(network, batches, prediction, chunk_size=prediction.chunk_size, **options)
    own = found[network.key].rows(back)
    if way != "dropout" or own.draws is None:
        return own
    return replace(own, probabilities=own.draws.mean(dim=0))


def pass_once(task: Classification, network: TrainedClassifier, texts: TextDataset) -> None:
    """One pass without noise over texts."""
    for batch in task.by_length(network, texts)[0]:
        posterior_expectation(network.program, batch).cpu()
