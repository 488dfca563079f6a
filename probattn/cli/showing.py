"""Single inputs of a finished run: what is predicted for them, and where the network looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor
from transformers import PreTrainedModel

from probattn.cli.trained import EvaluationOptions, TrainedModel
from probattn.data import TextDataset
from probattn.inference.predictive import posterior_predict
from probattn.inference.report import (
    AttentionExample,
    DataSet,
    Example,
    ModelKey,
    PredictedData,
    Predictions,
    attention_example,
    describe,
    own_tokens,
    predict_bayesian,
    predict_deterministic,
)
from probattn.models import AttentionCalls, capture, inspect
from probattn.models.hosts.selection import Layers, select


def predict_texts(
    trained: TrainedModel,
    texts: Sequence[str],
    options: EvaluationOptions,
    *,
    pairs: Sequence[str] | None = None,
) -> list[Example]:
    """Predictions of single texts, or of pairs of texts, with their spread over posterior draws."""
    seconds = None if pairs is None else tuple(pairs)
    data = TextDataset(tuple(texts), None, (), "texts given", pairs=seconds)
    described = DataSet(key="given", title="Given", role="in_domain", size=len(texts), labelled=False)
    batches = trained.batches(data, options)
    models: dict[ModelKey, Predictions] = {}
    if trained.is_bayesian:
        drawn = predict_bayesian(
            trained.model,
            batches,
            options.num_samples,
            seed=options.seed,
            chunk_size=options.chunk_size,
            device=trained.device,
        )
        models["bayesian_mean"] = Predictions.from_draws(drawn.draws)
    else:
        found = predict_deterministic(trained.model, batches, 1, seed=options.seed, device=trained.device)
        models[trained.key] = Predictions(found.probabilities)
    item = PredictedData(described, None, models)
    examples = describe(item, range(len(texts)), texts, trained.class_names, pairs)
    return [example.model_copy(update={"data": None, "index": None}) for example in examples]


def attention_of(
    trained: TrainedModel,
    baseline: TrainedModel | None,
    example: Example,
    options: EvaluationOptions,
    reason: Literal["chosen", "uncertain"],
) -> AttentionExample:
    """Attention maps of one input, at the layers that the report asks for, the last first.

    Beside the weights of aligned or repulsive attention, latent or not, stand those of the baseline. Where heads have a
    single query each, a map has the heads as its rows.
    """
    pairs = None if example.pair is None else (example.pair,)
    single = TextDataset((example.text,), None, (), "one text", pairs=pairs)
    batch = next(iter(trained.batches(single, options)))
    batch = {name: tensor.to(trained.device) for name, tensor in batch.items()}
    calls = AttentionCalls(calls_with_maps(trained.net, options.report.map_layers)[::-1])
    sites = [call.name for call in calls]
    if trained.is_bayesian:
        drawn = posterior_predict(
            trained.model, batch, options.num_samples, seed=options.seed, attention=sites
        ).attention
        assert drawn is not None
    else:
        drawn = _weights(trained, batch, calls)
    beside = None if baseline is None or not trained.alters_weights else _weights(baseline, batch, calls)
    valid = batch["attention_mask"].bool()
    tokens = trained.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    maps = own_tokens(drawn, 0, valid)
    plain = None if beside is None else {site: one[0] for site, one in own_tokens(beside, 0, valid).items()}
    pools = calls[0].pools
    if pools:
        maps = {site: one.transpose(1, 2) for site, one in maps.items()}  # [P, 1, H, S]
        plain = None if plain is None else {site: one.transpose(0, 1) for site, one in plain.items()}
    return attention_example(
        example,
        [f"head {head}" for head in range(calls[0].num_heads)] if pools else tokens,
        maps,
        keys=tokens,
        heads=[] if pools else options.report.heads,
        second=second_text(trained.tokenizer, example, len(tokens)),
        baseline=plain,
        latent=trained.is_bayesian,
        rows="heads" if pools else "tokens",
        reason=reason,
    )


def calls_with_maps(net: PreTrainedModel, layers: Layers) -> AttentionCalls:
    """The calls whose maps a report shows: self-attention, or else that of heads with a single query each.

    Args:
        net: the network.
        layers: which layers.

    Raises:
        ValueError: there is none, or a layer does not exist.
    """
    pooling = AttentionCalls(call for call in inspect(net) if call.pools)
    return select(pooling, layers, "all") if pooling else inspect(net, layers=layers, attention="self")


def _weights(model: TrainedModel, batch: dict[str, Tensor], calls: AttentionCalls) -> dict[str, Tensor]:
    """Attention weights by call as a single draw, ``[1, B, H, T, S]``."""
    found = capture(model.net, batch, calls)
    weights = {}
    for name, call in found.items():
        assert call.weights is not None
        weights[name] = call.weights[None]
    return weights


def second_text(tokenizer: Any, example: Example, length: int) -> int | None:
    """Where the second text of a pair begins among ``length`` tokens; None where the tokenizer does not tell."""
    if example.pair is None or not tokenizer.is_fast:
        return None
    encoded = tokenizer(example.text, example.pair, truncation=True, max_length=length)
    return list(encoded.sequence_ids(0)).index(1)
