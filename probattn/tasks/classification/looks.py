"""Attention maps of single texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from probattn.data import TextDataset
from probattn.inference.predictive import posterior_predict
from probattn.models import AttentionCalls, Classifier, capture, inspect
from probattn.models.hosts.calls import Layers, select
from probattn.models.hosts.convert import conversion
from probattn.report import AttentionExample, Example, HeadRows, Reason, attention_example, own_tokens
from probattn.report.attention import rounded_rows
from probattn.tasks.networks import Network

GIVEN = "texts given"
"""Source of texts that are not of the data."""

SHOWN_TEXTS = 3
"""Texts, at most, for which the report shows where each head looks."""


def attention_of(
    networks: Sequence[Network[Classifier]],
    batch: dict[str, Tensor],
    example: Example,
    *,
    options: Any,
    reason: Reason,
) -> AttentionExample:
    """Attention maps of one input (on the device) at ``report.map_layers``, the last first, beside the baseline's."""
    network, report, prediction = networks[-1], options.report, options.prediction
    latent = network.key == "bayesian_mean"
    calls = AttentionCalls(calls_with_maps(network.net, report.map_layers)[::-1])
    if latent:
        drawn = posterior_predict(
            network.program,
            batch,
            prediction.num_samples,
            seed=prediction.seed,
            attention=[call.name for call in calls],
        ).attention
        assert drawn is not None
    else:
        drawn = _weights(network, batch, calls)
    record = conversion(network.net)
    alters = record is not None and any(method.key != network.key or not latent for method in record.methods)
    reference = _weights(networks[0], batch, calls) if len(networks) > 1 and alters else None
    valid = batch["attention_mask"].bool()
    tokens = network.codec.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    maps = own_tokens(drawn, 0, valid)
    plain = (
        None if reference is None else {site: one[0] for site, one in own_tokens(reference, 0, valid).items()}
    )
    pools = calls[0].pools
    if pools:
        maps = {site: one.transpose(1, 2) for site, one in maps.items()}  # [P, 1, H, S]
        plain = None if plain is None else {site: one.transpose(0, 1) for site, one in plain.items()}
    return attention_example(
        example,
        [f"head {head}" for head in range(calls[0].num_heads)] if pools else tokens,
        maps,
        keys=tokens,
        heads=[] if pools else report.heads,
        second=second_text(network.codec, example, len(tokens)),
        baseline=plain,
        latent=latent,
        rows="heads" if pools else "tokens",
        reason=reason,
    )


def calls_with_maps(net: PreTrainedModel, layers: Layers) -> AttentionCalls:
    """Calls whose maps are shown: heads with a single query, else self-attention; ``ValueError`` for none."""
    pooling = AttentionCalls(call for call in inspect(net) if call.pools)
    return select(pooling, layers, "all") if pooling else inspect(net, layers=layers, attention="self")


def shown_texts(data: TextDataset, texts: Sequence[str], seconds: Sequence[str] | None) -> TextDataset:
    """Texts for which the report shows where each head looks: the chosen ones, or the first of the data."""
    if not texts:
        return data.take(2)
    pairs = None if seconds is None else tuple(seconds[:SHOWN_TEXTS])
    return TextDataset(tuple(texts[:SHOWN_TEXTS]), None, (), GIVEN, pairs=pairs)


def head_rows(
    network: Network[Classifier], batch: dict[str, Tensor], text: str, calls: AttentionCalls
) -> Iterator[HeadRows]:
    """Attention of each head of the last call over one text, mean over queries; empty where its keys are no tokens."""
    inputs, call = network.moved(batch), calls[-1]
    (captured,) = capture(network.net, inputs, AttentionCalls([call])).values()
    ids = inputs["input_ids"][0]
    if captured.weights is not None and captured.weights.shape[-1] == len(ids):
        weights = captured.weights[0][:, captured.query_valid[0]].mean(dim=1)  # [H, S]
        yield HeadRows(
            model=network.key,
            site=call.name,
            text=text,
            tokens=tuple(network.codec.convert_ids_to_tokens(ids.tolist())),
            weights=rounded_rows(weights, 4),
        )


def _weights(
    network: Network[Classifier], batch: dict[str, Tensor], calls: AttentionCalls
) -> dict[str, Tensor]:
    """Attention weights by call as a single draw, ``[1, B, H, T, S]``."""
    weights = {}
    for name, call in capture(network.net, batch, calls).items():
        assert call.weights is not None
        weights[name] = call.weights[None]
    return weights


def second_text(tokenizer: Any, example: Example, length: int) -> int | None:
    """Position of the second text of a pair among ``length`` tokens; None where the tokenizer does not give it."""
    if example.pair is None or not tokenizer.is_fast:
        return None
    encoded = tokenizer(example.text, example.pair, truncation=True, max_length=length)
    return list(encoded.sequence_ids(0)).index(1)
