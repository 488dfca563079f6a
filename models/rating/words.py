"""Attention and lexical probe of a batch, for every network that they are defined for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from probattn.models.hosts import capture
from probattn.models.hosts.dry_run import untouched
from probattn.models.program import IGNORED
from probattn.models.rating.own_head import base_model, kept_outputs, own_head
from probattn.models.sentence import SelfAttentiveForSequenceClassification
from probattn.models.translation import RecurrentForTranslation
from probattn.probes import classifier_probe, lexical_probe

TOLERANCE = 1e-3
"""Tolerance between two computations of the same logits."""


class WordRatings(NamedTuple):
    """Ratings of input words by a network, for each of its T outputs; one for a classifier."""

    attention: Tensor
    """Weights, the mean over heads; 0 at padding, ``[B, T, S]``."""
    probe: Tensor
    """Logarithm of the lexical probe, -inf at padding, ``[B, T, S]``."""
    mask: Tensor
    """True for input words that count, bool ``[B, S]``."""
    query_mask: Tensor
    """True for outputs that count, bool ``[B, T]``."""
    correct: Tensor
    """True where the right output is the network's first choice, bool ``[B, T]``."""


def rate_words(net: PreTrainedModel, batch: Mapping[str, Tensor]) -> WordRatings:
    r"""Attention :math:`\alpha` and lexical probe :math:`\beta` of a batch (Snell et al. 2021, Eq. 1, 4, 7, 9).

    - For :class:`probattn.models.RecurrentForTranslation` :math:`\beta_{t,l} = N([h_l, s_t])_{y_t}`, with K heads of
      :math:`K h_l`, their context if all attended to that word.
    - For :class:`probattn.models.SelfAttentiveForSequenceClassification` :math:`\beta_l = N(h_l)_y`, every head at l.
    - For other Hugging Face classifiers the same with their own head and their last layer: the attention is that of
      the position that the head reads. States of a Transformer's last layer have seen all words, so that their probe
      describes the position, not the knowledge of the word there.

    Args:
        net: one of these, converted or not; latent weights are those of the posterior expectation.
        batch: arguments of its forward pass, with ``labels`` (int64 ``[B]``, or ``[B, T]`` and -100 at padding).

    Returns:
        The ratings, without gradients; the network and its parts are in the modes they were in.

    Raises:
        TypeError: the probe is not defined for the network.
        ValueError: no labels, or a head that reads something else than one position.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> batch = {"input_ids": torch.ones(3, 5, dtype=torch.long), "labels": torch.tensor([0, 1, 1])}
        >>> ratings = rate_words(BertForSequenceClassification(config), batch)
        >>> ratings.attention.shape, ratings.probe.shape
        (torch.Size([3, 1, 5]), torch.Size([3, 1, 5]))
    """
    if "labels" not in batch:
        raise ValueError(f"rate_words: expected labels in the batch, got {', '.join(sorted(batch))}")
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with untouched(net):
        if isinstance(net, RecurrentForTranslation):
            return _translation(net, inputs, batch["labels"])
        return _classification(net, inputs, batch["labels"])


def _mask(inputs: Mapping[str, Tensor]) -> Tensor:
    mask = inputs.get("attention_mask")
    return torch.ones_like(inputs["input_ids"], dtype=torch.bool) if mask is None else mask.bool()


def _translation(net: RecurrentForTranslation, inputs: Mapping[str, Tensor], labels: Tensor) -> WordRatings:
    mask, valid = _mask(inputs), labels != IGNORED
    with kept_outputs(net) as outputs:
        (call,) = capture(net, inputs).values()
    assert call.weights is not None
    output, target = outputs[net], labels.where(valid, 0)
    heads = net.config.num_attention_heads
    probe = lexical_probe(
        lambda context, state: net.output(heads * context, state),
        output.encoder_last_hidden_state,
        output.decoder_last_hidden_state,
        target,
        mask,
        log=True,
    )
    attention = call.weights.mean(dim=1).masked_fill(~mask[:, None], 0)
    return WordRatings(attention, probe, mask, valid, output.logits.argmax(dim=-1) == target)


def _classification(net: PreTrainedModel, inputs: Mapping[str, Tensor], labels: Tensor) -> WordRatings:
    if labels.ndim != 1 or not hasattr(net, "num_labels"):
        raise TypeError(
            "rate_words: expected a RecurrentForTranslation, a SelfAttentiveForSequenceClassification or another "
            f"Hugging Face classifier with labels [B], got {type(net).__name__} with labels {list(labels.shape)}; "
            "compute its ratings with probattn.probes"
        )
    if net.num_labels == 1:
        raise ValueError(f"rate_words: expected two classes or more, {type(net).__name__} has one output")
    mask, base = _mask(inputs), base_model(net)
    with kept_outputs(net, base) as outputs:
        calls = capture(net, inputs)
    logits, states = outputs[net].logits, getattr(outputs[base], "last_hidden_state", None)
    if not isinstance(states, Tensor):
        raise TypeError(
            f"rate_words: expected a {type(net).__name__} whose base model gives last_hidden_state, its "
            f"{type(base).__name__} gave none"
        )
    weights = list(calls.values())[-1].weights  # [B, H, T, S]
    assert weights is not None
    rows = torch.arange(len(labels), device=labels.device)
    position = (
        0
        if isinstance(net, SelfAttentiveForSequenceClassification)
        else _read_place(net, states, logits, mask)
    )
    attention = weights[rows, :, position].mean(dim=1).masked_fill(~mask, 0)
    probe = classifier_probe(lambda hidden: own_head(net, hidden), states, labels, mask, log=True)
    correct = logits.argmax(dim=-1) == labels
    return WordRatings(
        attention[:, None], probe[:, None], mask, torch.ones_like(correct)[:, None], correct[:, None]
    )


def _read_place(net: PreTrainedModel, states: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """The position that the head reads, ``[B]``: the first word of each text or its last."""
    rows = torch.arange(len(mask), device=mask.device)
    positions = torch.arange(mask.shape[1], device=mask.device)
    for position in (mask.int().argmax(dim=1), (positions * mask).argmax(dim=1)):
        if torch.allclose(own_head(net, states[rows, position]), logits, atol=TOLERANCE, rtol=TOLERANCE):
            return position
    raise ValueError(
        f"rate_words: expected a {type(net).__name__} whose head reads the first or the last word, its logits come "
        "from neither alone; compute its ratings with probattn.probes.classifier_probe"
    )
