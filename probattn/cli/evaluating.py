"""From a finished run to the records of its report."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedModel

from probattn.cli.errors import CommandError
from probattn.cli.networks import quiet_loading
from probattn.data import PadCollate, TextDataset, TokenizedTexts
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
from probattn.models import Classifier, load
from probattn.models.hosts.convert import conversion, select
from probattn.recipes import Recipe, ReportRecipe

REPORT_ROLES: dict[str, Role] = {"test": "in_domain", "shifted": "shifted", "out_of_domain": "out_of_domain"}
PACKAGES = ("probattn", "torch", "pyro-ppl", "transformers", "accelerate", "torchmetrics")
HEALTH_CHUNK = 2
"""Draws per pass while all sites' weights are looked at: a pass holds them all."""

MODEL = "model"
BASELINE = "baseline"
RECORDS = "metrics.jsonl"


def _plain_report() -> ReportRecipe:
    return ReportRecipe()


@dataclass(frozen=True)
class EvaluationOptions:
    """How a run is evaluated.

    Attributes:
        num_samples: P, posterior (and dropout) draws.
        chunk_size: draws per pass; None for the default.
        seed: of the draws and of the bootstrap.
        batch_size: rows per batch.
        max_length: most tokens a text; None for what the network takes.
        report: numbers of bins, resamples and examples; texts, layers and heads of attention maps.
        health_batches: batches over which the spread of the weights is averaged.
    """

    num_samples: int = 20
    chunk_size: int | None = None
    seed: int = 0
    batch_size: int = 32
    max_length: int | None = None
    report: ReportRecipe = field(default_factory=_plain_report)
    health_batches: int = 4

    @classmethod
    def of(cls, recipe: Recipe) -> EvaluationOptions:
        """The options that a recipe asks for."""
        prediction = recipe.prediction
        return cls(
            prediction.num_samples,
            prediction.chunk_size,
            prediction.seed,
            prediction.batch_size,
            recipe.data.max_length,
            recipe.report,
        )


@dataclass(frozen=True)
class TrainedModel:
    """A network of a run with its tokenizer, on the device where it predicts."""

    model: Classifier
    tokenizer: Any
    folder: Path

    @property
    def is_bayesian(self) -> bool:
        """Whether its attention is latent."""
        return conversion(self.model.net) is not None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the outputs."""
        names = cast(dict[int, str], cast(PreTrainedModel, self.model.net).config.id2label)
        return tuple(names[index] for index in range(len(names)))

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return next(self.model.parameters()).device

    def batches(self, data: TextDataset, options: EvaluationOptions) -> DataLoader[Any]:
        """Batches of a data set, in order."""
        config = self.model.net.config
        rows = TokenizedTexts(data, self.tokenizer, max_length=options.max_length, config=config)
        return DataLoader(rows, batch_size=options.batch_size, collate_fn=PadCollate(self.tokenizer))


def load_model(run: Path) -> TrainedModel:
    """Loads the trained network of a run folder.

    Raises:
        CommandError: the folder holds no finished run.
    """
    folder = run / MODEL
    if not folder.is_dir():
        raise CommandError(
            f"{run}: expected a finished run with a folder '{MODEL}', found none; train it first"
        )
    with quiet_loading():
        net = load(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    model = Classifier(net).to(device or torch.device("cpu"))
    return TrainedModel(model.eval(), tokenizer, run)


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
    predicted = [_predict(trained, baseline, key, item, options) for key, item in described.items()]
    measured = evaluate(
        predicted,
        resamples=options.report.resamples,
        level=options.report.level,
        seed=options.seed,
        num_bins=options.report.bins,
        thresholds=options.report.thresholds,
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


def _predict(
    trained: TrainedModel,
    baseline: TrainedModel | None,
    key: str,
    data: TextDataset,
    options: EvaluationOptions,
) -> PredictedData:
    models: dict[ModelKey, Predictions] = {}
    plain = baseline if trained.is_bayesian else trained
    if plain is not None:
        found = predict_deterministic(
            plain.model,
            plain.batches(data, options),
            options.num_samples,
            seed=options.seed,
            device=plain.device,
        )
        models["deterministic"] = Predictions(
            found.probabilities, found.draws, None if found.draws is None else "dropout"
        )
    if trained.is_bayesian:
        drawn = predict_bayesian(
            trained.model,
            trained.batches(data, options),
            options.num_samples,
            seed=options.seed,
            chunk_size=options.chunk_size,
            device=trained.device,
        )
        models["bayesian_mean"] = Predictions.from_draws(drawn.draws)
        models["bayesian_expectation"] = Predictions(drawn.expectation)
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
    uncertain = describe(home, most_uncertain(home, report.uncertain), data.texts, classes)
    mistakes = describe(home, confident_mistakes(home, report.mistakes), data.texts, classes)
    chosen = predict_texts(trained, report.texts, options) if report.texts else []
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
    single = TextDataset((example.text,), None, (), "one text")
    batch = next(iter(trained.batches(single, options)))
    batch = {name: tensor.to(trained.device) for name, tensor in batch.items()}
    record = conversion(trained.model.net)
    assert record is not None
    sites = [call.name for call in select(record.calls, options.report.map_layers, "self")][::-1]
    drawn = posterior_predict(trained.model, batch, options.num_samples, seed=options.seed, attention=sites)
    assert drawn.attention is not None
    tokens = trained.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    weights = own_tokens(drawn.attention, 0, batch["attention_mask"].bool())
    return attention_example(example, tokens, weights, heads=options.report.heads, reason=reason)


def predict_texts(trained: TrainedModel, texts: list[str], options: EvaluationOptions) -> list[Example]:
    """Predictions of single texts with their spread over draws."""
    data = TextDataset(tuple(texts), None, (), "texts given")
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
    found = describe(item, range(len(texts)), texts, trained.class_names)
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
