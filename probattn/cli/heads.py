"""How the heads of a finished run's networks differ, and what each is good for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch

from probattn.cli.aligning import captured
from probattn.cli.errors import CommandError
from probattn.cli.networks import load_classifier
from probattn.cli.trained import EvaluationOptions, TrainedModel
from probattn.cli.words import make_words
from probattn.data import DataError, TextDataset
from probattn.inference.report import HeadDrops, HeadRows, Heads, HeadsKey, ModelKey, site_heads
from probattn.models import AttentionCalls, CapturedCall, Classifier, capture, head_redundancy, inspect
from probattn.models.hosts.projections import head_lengths
from probattn.recipes import Recipe, RecipeError

SHOWN_TEXTS = 3
"""Texts, at most, for which the report shows where each head looks."""


def measure_heads(
    trained: TrainedModel,
    baseline: TrainedModel | None,
    start: TrainedModel | None,
    data: TextDataset,
    options: EvaluationOptions,
) -> Heads | None:
    """Compares the heads of the calls that conversion changed, with the baseline's and those before training beside.

    Args:
        trained: the run's network.
        baseline: the deterministic network beside it.
        start: the network before training; None where it is not there any more.
        data: the texts; fixed choices of ``report.head_texts`` and ``report.masked_texts`` are looked at.
        options: how the run is evaluated.

    Returns:
        The records; None where no text is to be looked at, or no call has two heads.
    """
    report = options.report
    calls = AttentionCalls(call for call in inspect(trained.net) if call.num_heads > 1)
    if not report.head_texts or not calls:
        return None
    models: dict[ModelKey, TrainedModel] = {} if baseline is None else {"deterministic": baseline}
    models[trained.key] = trained
    compared: dict[HeadsKey, TrainedModel] = {} if start is None else {"start": start}
    compared.update((key, model) for key, model in models.items())
    chosen = data.take(report.head_texts)
    sites = [
        site
        for key, model in compared.items()
        for site in site_heads(captured(model, chosen, options, calls), key, head_lengths(model.net, calls))
    ]
    whole, drops = _redundancy(models, data, options, calls)
    return Heads(
        texts=len(chosen),
        sites=tuple(sites),
        masked_texts=len(data.take(report.masked_texts)) if drops else 0,
        whole=whole,
        drops=drops,
        rows=tuple(_rows(models, data, options, calls)),
    )


def load_start(recipe: Recipe, trained: TrainedModel, train: TextDataset) -> TrainedModel | None:
    """The network as it was before training: the pretrained one, or new weights of the same seed.

    Args:
        recipe: the run's.
        trained: the run's network.
        train: the training texts, which give a new network its words.

    Returns:
        The network, deterministic; None where it cannot be loaded any more.
    """
    seed = recipe.training.seed
    try:
        words = make_words(recipe.network, train, seed=seed) if recipe.network.is_new else None
        net = load_classifier(recipe.network, trained.class_names, seed=seed, words=words)
    except (CommandError, DataError, RecipeError):
        return None
    return TrainedModel(Classifier(net).to(trained.device).eval(), trained.tokenizer, trained.folder)


def _redundancy(
    models: Mapping[ModelKey, TrainedModel],
    data: TextDataset,
    options: EvaluationOptions,
    calls: AttentionCalls,
) -> tuple[dict[ModelKey, float], tuple[HeadDrops, ...]]:
    """Accuracy with all heads, and without each."""
    if not options.report.masked_texts or data.labels is None:
        return {}, ()
    chosen = data.take(options.report.masked_texts)
    rows = chosen.rows(chosen.shortest_first())
    whole: dict[ModelKey, float] = {}
    drops: list[HeadDrops] = []
    for key, model in models.items():
        batches = [
            {name: tensor.to(model.device) for name, tensor in batch.items()}
            for batch in model.batches(rows, options)
        ]
        found = head_redundancy(model.net, partial(_accuracy, model, batches), calls)
        whole[key] = found.whole
        drops += [HeadDrops(model=key, site=site, accuracy=values) for site, values in found.masked.items()]
    return whole, tuple(drops)


def _accuracy(model: TrainedModel, batches: list[dict[str, torch.Tensor]]) -> float:
    right = total = 0
    for batch in batches:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        right += int((model.model(inputs).argmax(dim=-1) == batch["labels"]).sum())
        total += len(batch["labels"])
    return right / total


def _rows(
    models: Mapping[ModelKey, TrainedModel],
    data: TextDataset,
    options: EvaluationOptions,
    calls: AttentionCalls,
) -> Iterator[HeadRows]:
    """Where each head of the last call looks in the texts of one's own choice, or in the first of the data."""
    report, call = options.report, AttentionCalls(calls[-1:])
    texts = data.take(2)
    if report.texts:
        pairs = report.second_texts()
        seconds = None if pairs is None else tuple(pairs[:SHOWN_TEXTS])
        texts = TextDataset(tuple(report.texts[:SHOWN_TEXTS]), None, (), "texts given", pairs=seconds)
    for single in (texts.rows([row]) for row in range(len(texts))):
        for key, model in models.items():
            batch = next(iter(model.batches(single, options)))
            inputs = {name: tensor.to(model.device) for name, tensor in batch.items() if name != "labels"}
            (found,) = capture(model.net, inputs, call).values()
            if found.weights is None or found.weights.shape[-1] != inputs["input_ids"].shape[1]:
                return
            yield _row(key, call[0].name, single.texts[0], model, inputs["input_ids"][0], found)


def _row(
    key: ModelKey, site: str, text: str, model: TrainedModel, ids: torch.Tensor, found: CapturedCall
) -> HeadRows:
    assert found.weights is not None
    weights = found.weights[0][:, found.query_valid[0]].mean(dim=1)  # [H, S]
    return HeadRows(
        model=key,
        site=site,
        text=text,
        tokens=tuple(model.tokenizer.convert_ids_to_tokens(ids.tolist())),
        weights=tuple(tuple(round(value, 4) for value in row) for row in weights.tolist()),
    )
