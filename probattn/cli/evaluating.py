"""From a finished run to the records of its report."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from probattn.cli.trained import EvaluationOptions, TrainedModel
from probattn.data import TextDataset
from probattn.inference.predictive import posterior_predict
from probattn.inference.records import read_records
from probattn.inference.report import (
    AttentionExample,
    DataSet,
    Example,
    ModelKey,
    PredictedData,
    Predictions,
    Results,
    Role,
    RunDescription,
    attention_example,
    confident_mistakes,
    describe,
    evaluate,
    most_uncertain,
    own_tokens,
    predict_bayesian,
    predict_deterministic,
    site_health,
    training_curves,
    weight_spreads,
)
from probattn.models.hosts.convert import conversion, select

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
) -> Results:
    """Predicts every data set with every model and measures what came out.

    Args:
        trained: the run's network, Bayesian or deterministic.
        baseline: the deterministic network beside a Bayesian one.
        data: data sets by the name of their role in a recipe; "test" must be there.
        description: what was run.
        options: numbers of draws and of examples.

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
    own: ModelKey = "bayesian_mean" if trained.is_bayesian else "deterministic"
    curves += training_curves(_records(trained), own)
    details: dict[str, Any] = {}
    if trained.is_bayesian:
        details = _details(trained, predicted[0], described["test"], options)
    return Results(
        run=description,
        classes=trained.class_names,
        data=tuple(item.data for item in predicted),
        scores=measured.scores,
        differences=measured.differences,
        curves=tuple(curves),
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
        baseline: the deterministic network beside a Bayesian one.
        key: role of the data in the recipe.
        data: the texts.
        options: numbers of draws and rows.

    Returns:
        Predictions by model.
    """
    models: dict[ModelKey, Predictions] = {}
    order = data.shortest_first()  # a batch is as long as its longest text
    rows, back = data.rows(order), torch.tensor(order).argsort()
    plain = baseline if trained.is_bayesian else trained
    if plain is not None:
        found = predict_deterministic(
            plain.model,
            plain.batches(rows, options),
            options.num_samples,
            seed=options.seed,
            device=plain.device,
        )
        models["deterministic"] = (
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
    )
    return PredictedData(described, labels, models)


def _details(
    trained: TrainedModel, home: PredictedData, data: TextDataset, options: EvaluationOptions
) -> dict[str, Any]:
    """What only a Bayesian network has: health of its sites, uncertain inputs, attention maps."""
    record = conversion(trained.model.net)
    assert record is not None
    assert record.method is not None
    batches = trained.batches(data, options)
    spreads = weight_spreads(
        trained.model,
        islice(iter(batches), options.health_batches),
        options.num_samples,
        seed=options.seed,
        chunk_size=options.chunk_size or HEALTH_CHUNK,
        device=trained.device,
    )
    with_sites = [item["sites"] for item in _records(trained) if item.get("sites")]
    health = site_health(spreads, with_sites[-1], record.method.kl_reduction) if with_sites else []
    report, classes = options.report, trained.class_names
    texts, pairs = data.texts, data.pairs
    uncertain = describe(home, most_uncertain(home, report.uncertain), texts, classes, pairs)
    mistakes = describe(home, confident_mistakes(home, report.mistakes), texts, classes, pairs)
    chosen = []
    if report.texts:
        chosen = predict_texts(trained, report.texts, options, pairs=report.second_texts())
    maps = [attention_of(trained, item, options, "chosen") for item in chosen]
    maps += [attention_of(trained, item, options, "uncertain") for item in uncertain]
    return {
        "health": tuple(health),
        "uncertain": tuple(uncertain),
        "mistakes": tuple(mistakes),
        "attention": tuple(maps),
    }


def attention_of(
    trained: TrainedModel,
    example: Example,
    options: EvaluationOptions,
    reason: Literal["chosen", "uncertain"],
) -> AttentionExample:
    """Attention maps of one input, at the layers that the report asks for, the last first."""
    pairs = None if example.pair is None else (example.pair,)
    single = TextDataset((example.text,), None, (), "one text", pairs=pairs)
    batch = next(iter(trained.batches(single, options)))
    batch = {name: tensor.to(trained.device) for name, tensor in batch.items()}
    record = conversion(trained.model.net)
    assert record is not None
    sites = [call.name for call in select(record.calls, options.report.map_layers, "self")][::-1]
    drawn = posterior_predict(trained.model, batch, options.num_samples, seed=options.seed, attention=sites)
    assert drawn.attention is not None
    tokens = trained.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    weights = own_tokens(drawn.attention, 0, batch["attention_mask"].bool())
    second = second_text(trained.tokenizer, example, len(tokens))
    return attention_example(
        example, tokens, weights, heads=options.report.heads, second=second, reason=reason
    )


def second_text(tokenizer: Any, example: Example, length: int) -> int | None:
    """Where the second text of a pair begins among ``length`` tokens; None where the tokenizer does not tell."""
    if example.pair is None or not tokenizer.is_fast:
        return None
    encoded = tokenizer(example.text, example.pair, truncation=True, max_length=length)
    return list(encoded.sequence_ids(0)).index(1)


def predict_texts(
    trained: TrainedModel,
    texts: Sequence[str],
    options: EvaluationOptions,
    *,
    pairs: Sequence[str] | None = None,
) -> list[Example]:
    """Predictions of single texts, or of pairs of texts, with their spread over draws."""
    seconds = None if pairs is None else tuple(pairs)
    data = TextDataset(tuple(texts), None, (), "texts given", pairs=seconds)
    described = DataSet(key="given", title="Given", role="in_domain", size=len(texts), labelled=False)
    drawn = predict_bayesian(
        trained.model,
        trained.batches(data, options),
        options.num_samples,
        seed=options.seed,
        chunk_size=options.chunk_size,
        device=trained.device,
    )
    item = PredictedData(described, None, {"bayesian_mean": Predictions.from_draws(drawn.draws)})
    found = describe(item, range(len(texts)), texts, trained.class_names, pairs)
    return [example.model_copy(update={"data": None, "index": None}) for example in found]


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
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _title(source: str) -> str:
    """A data set's name for people: ``rotten_tomatoes (test)`` is "Rotten tomatoes (test)"."""
    name = Path(source).name.replace("_", " ")
    return name[:1].upper() + name[1:]


def _records(trained: TrainedModel) -> list[dict[str, Any]]:
    file = trained.folder / RECORDS
    return [dict(record) for record in read_records(file)] if file.exists() else []
