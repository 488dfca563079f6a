"""From a finished run to the records of its report."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from probattn.cli.aligning import measure_alignment
from probattn.cli.heads import measure_heads
from probattn.cli.probing import of_the_same_examples, read_dynamics
from probattn.cli.showing import attention_of, predict_texts
from probattn.cli.trained import EvaluationOptions, TrainedModel
from probattn.data import TextDataset
from probattn.inference.records import read_records
from probattn.inference.report import (
    DataSet,
    ModelKey,
    PredictedData,
    Predictions,
    Results,
    Role,
    RunDescription,
    SiteHealth,
    confident_mistakes,
    describe,
    evaluate,
    most_uncertain,
    predict_bayesian,
    predict_deterministic,
    site_health,
    training_curves,
    weight_spreads,
)
from probattn.models.hosts.convert import conversion

REPORT_ROLES: dict[str, Role] = {"test": "in_domain", "shifted": "shifted", "out_of_domain": "out_of_domain"}
PACKAGES = ("probattn", "torch", "pyro-ppl", "transformers", "accelerate", "torchmetrics")
HEALTH_CHUNK = 2
"""Draws per pass while all sites' weights are looked at: a pass holds them all."""

RECORDS = "metrics.jsonl"


def evaluate_run(
    trained: TrainedModel,
    baseline: TrainedModel | None,
    data: Mapping[str, TextDataset],
    description: RunDescription,
    options: EvaluationOptions,
    start: TrainedModel | None = None,
) -> Results:
    """Predicts every data set with every model and measures what came out.

    Args:
        trained: the run's network, with any methods or none.
        baseline: the deterministic network beside it.
        data: data sets by the name of their role in a recipe; "test" must be there.
        description: what was run.
        options: numbers of draws and of examples.
        start: the network before training, to compare heads with.

    Returns:
        The records.
    """
    described = {key: item for key, item in data.items() if key in REPORT_ROLES}
    predicted = [predict_data(trained, baseline, key, item, options) for key, item in described.items()]
    measured = evaluate(
        predicted,
        resamples=options.report.resamples,
        level=options.report.level,
        seed=options.seed,
        num_bins=options.report.bins,
        thresholds=options.report.thresholds,
        asked=options.report.measures,
    )
    curves = [] if baseline is None else training_curves(_records(baseline), "deterministic")
    curves += training_curves(_records(trained), trained.key)
    details: dict[str, Any] = {}
    if trained.is_converted:
        details = _inputs(trained, baseline, predicted[0], described["test"], options)
    if trained.is_bayesian:
        details["health"] = _health(trained, described["test"], options)
    if trained.is_aligned:
        details["alignment"] = measure_alignment(trained, baseline, described["test"], options)
    if trained.compares_heads:
        details["heads"] = measure_heads(trained, baseline, start, described["test"], options)
    watched = [None if baseline is None else read_dynamics(baseline.folder, "deterministic", maps=False)]
    watched.append(read_dynamics(trained.folder, trained.key, maps=True))
    return Results(
        run=description,
        classes=trained.class_names,
        data=tuple(item.data for item in predicted),
        scores=measured.scores,
        differences=measured.differences,
        curves=tuple(curves),
        dynamics=of_the_same_examples(watched),
        **details,
    )


def predict_data(
    trained: TrainedModel,
    baseline: TrainedModel | None,
    key: str,
    data: TextDataset,
    options: EvaluationOptions,
) -> PredictedData:
    """What the models say to every text of a data set, in its order.

    Args:
        trained: the run's network.
        baseline: the deterministic network beside it.
        key: role of the data in the recipe.
        data: the texts.
        options: numbers of draws and rows.

    Returns:
        Predictions by model.
    """
    models: dict[ModelKey, Predictions] = {}
    order = data.shortest_first()  # a batch is as long as its longest text
    rows, back = data.rows(order), torch.tensor(order).argsort()
    plain: dict[ModelKey, TrainedModel | None] = {
        "deterministic": baseline if trained.is_converted else trained
    }
    if not trained.is_bayesian:
        plain[trained.key] = trained
    for name, model in plain.items():
        if model is None:
            continue
        found = predict_deterministic(
            model.model,
            model.batches(rows, options),
            options.num_samples,
            seed=options.seed,
            device=model.device,
        )
        models[name] = (
            Predictions(found.probabilities[back])
            if found.draws is None
            else Predictions(found.probabilities[back], found.draws[:, back], "dropout")
        )
    if trained.is_bayesian:
        drawn = predict_bayesian(
            trained.model,
            trained.batches(rows, options),
            options.num_samples,
            seed=options.seed,
            chunk_size=options.chunk_size,
            device=trained.device,
        )
        models["bayesian_mean"] = Predictions.from_draws(drawn.draws[:, back])
        models["bayesian_expectation"] = Predictions(drawn.expectation[back])
    labels = None if data.labels is None else torch.tensor(data.labels)
    described = DataSet(
        key=key,
        title=_title(data.source),
        role=REPORT_ROLES[key],
        size=len(data),
        labelled=labels is not None,
        source=data.source,
        unit="texts",
    )
    return PredictedData(described, labels, models)


def _health(trained: TrainedModel, data: TextDataset, options: EvaluationOptions) -> tuple[SiteHealth, ...]:
    """The state of the posterior at each site."""
    record = conversion(trained.net)
    assert record is not None
    assert record.method is not None
    spreads = weight_spreads(
        trained.model,
        islice(iter(trained.batches(data, options)), options.health_batches),
        options.num_samples,
        seed=options.seed,
        chunk_size=options.chunk_size or HEALTH_CHUNK,
        device=trained.device,
    )
    with_sites = [item["sites"] for item in _records(trained) if item.get("sites")]
    return tuple(site_health(spreads, with_sites[-1], record.method.kl_reduction)) if with_sites else ()


def _inputs(
    trained: TrainedModel,
    baseline: TrainedModel | None,
    home: PredictedData,
    data: TextDataset,
    options: EvaluationOptions,
) -> dict[str, Any]:
    """Single inputs: the most uncertain ones, the surest mistakes, attention maps."""
    report, classes = options.report, trained.class_names
    texts, pairs = data.texts, data.pairs
    uncertain = describe(home, most_uncertain(home, report.uncertain), texts, classes, pairs)
    mistakes = describe(home, confident_mistakes(home, report.mistakes), texts, classes, pairs)
    chosen = []
    if report.texts:
        chosen = predict_texts(trained, report.texts, options, pairs=report.second_texts())
    maps = [attention_of(trained, baseline, item, options, "chosen") for item in chosen]
    maps += [attention_of(trained, baseline, item, options, "uncertain") for item in uncertain]
    return {"uncertain": tuple(uncertain), "mistakes": tuple(mistakes), "attention": tuple(maps)}


def package_versions() -> dict[str, str]:
    """Versions of Python and of what a run's figures depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def now() -> str:
    """Date and time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _title(source: str) -> str:
    """A data set's name for people: ``rotten_tomatoes (test)`` is "Rotten tomatoes (test)"."""
    name = Path(source).name.replace("_", " ")
    return name[:1].upper() + name[1:]


def _records(trained: TrainedModel) -> list[dict[str, Any]]:
    file = trained.folder / RECORDS
    return [dict(record) for record in read_records(file)] if file.exists() else []
