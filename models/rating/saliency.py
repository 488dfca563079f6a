"""Importance of each input word for a network's right outputs, by gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from probattn.models.hosts.dry_run import untouched
from probattn.probes import SaliencyKind, gradient_saliency
from probattn.sites.scores import without_cudnn


def word_saliency(
    net: PreTrainedModel, batch: Mapping[str, Tensor], *, kind: SaliencyKind = "norm"
) -> Tensor:
    r"""Gradient saliency :math:`\Delta` of every input word (Snell et al. 2021, section 5.1).

    The score is the log-probability of the right output, the gradient that by the word's embedding; see
    :func:`probattn.probes.gradient_saliency` for its kinds.

    Args:
        net: a network that takes ``inputs_embeds`` and gives ``logits`` ``[B, C]`` or ``[B, T, V]``: a Hugging Face
            classifier, :class:`probattn.models.RecurrentForTranslation` or another encoder-decoder.
        batch: arguments of its forward pass, with ``labels`` (int64 ``[B]``, or ``[B, T]`` and -100 at padding).
        kind: which of the three.

    Returns:
        ``[B, T, S]``, T = 1 for a classifier; 0 at padding of the input. The network and its parts are in the
        modes they were in.

    Raises:
        ValueError: no labels.

    Example:
        >>> import torch
        >>> from probattn.models import SelfAttentiveConfig, SelfAttentiveForSequenceClassification
        >>> sizes = {"vocab_size": 9, "hidden_size": 4, "attention_size": 4, "num_attention_heads": 1}
        >>> net = SelfAttentiveForSequenceClassification(SelfAttentiveConfig(**sizes, classifier_size=4))
        >>> batch = {"input_ids": torch.tensor([[4, 5, 6]]), "labels": torch.tensor([1])}
        >>> word_saliency(net, batch).shape
        torch.Size([1, 1, 3])
    """
    if "labels" not in batch:
        raise ValueError(f"word_saliency: expected labels in the batch, got {', '.join(sorted(batch))}")
    labels = batch["labels"]
    target = (labels if labels.ndim == 2 else labels[:, None]).clamp(min=0)  # [B, T]
    other_inputs = {name: value for name, value in batch.items() if name not in ("input_ids", "labels")}
    mask = batch.get("attention_mask")
    table = cast(nn.Embedding, net.get_input_embeddings())

    def score(embeddings: Tensor) -> Tensor:
        logits = net(inputs_embeds=embeddings, **other_inputs).logits
        logits = logits if logits.ndim == 3 else logits[:, None]
        saliency: Tensor = logits.log_softmax(dim=-1).gather(-1, target[..., None])[..., 0]
        return saliency

    with untouched(net), without_cudnn():
        saliency = gradient_saliency(
            score,
            table(batch["input_ids"]),
            None if mask is None else mask.bool(),
            kind=kind,
            table=table.weight if kind == "replace" else None,
        )
    return saliency if saliency.ndim == 3 else saliency[:, None]
