"""Ratings of a network's input words by its attention, its knowledge of each word alone, and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from probattn.models.hosts.capture import capture
from probattn.models.hosts.dry_run import untouched
from probattn.models.layers import valid_positions
from probattn.models.program import IGNORED, Batch
from probattn.models.sentence import SelfAttentiveForSequenceClassification
from probattn.models.translation import RecurrentForTranslation
from probattn.probes import SaliencyKind, classifier_probe, gradient_saliency, lexical_probe
from probattn.sites.scores import without_cudnn


@contextmanager
def kept_outputs(*modules: nn.Module) -> Iterator[dict[nn.Module, Any]]:
    """Last outputs of modules, by module, while a network runs inside the block."""
    outputs: dict[nn.Module, Any] = {}

    def keep(module: nn.Module, _given: Any, output: Any) -> None:
        outputs[module] = output

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def own_head(net: PreTrainedModel, states: Tensor) -> Tensor:
    r"""Applies a classifier's head to single hidden states, each as if it were the only word of a text.

    The network's own code runs with the base model's output replaced by the states (and by what the base model's
    ``pooler`` makes of them). In the self-attentive classifier all attention heads attend to the one word.

    Args:
        net: a Hugging Face classifier in evaluation mode, or
            :class:`probattn.models.SelfAttentiveForSequenceClassification`.
        states: last hidden states of the base model, ``[..., D]``.

    Returns:
        Logits of C classes, ``[..., C]``.

    Raises:
        TypeError: the network has no base model.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = BertForSequenceClassification(config).eval()
        >>> batch = {"input_ids": torch.ones(3, 5, dtype=torch.long)}
        >>> states = net.bert(**batch).last_hidden_state
        >>> torch.allclose(own_head(net, states)[:, 0], net(**batch).logits)  # BERT reads its first word
        True
    """
    base = base_model(net)
    single = states.reshape(-1, 1, states.shape[-1])
    if isinstance(net, SelfAttentiveForSequenceClassification):
        pooled = single[:, 0].repeat(1, net.config.num_attention_heads)
    else:
        pooler = getattr(base, "pooler", None)
        pooled = pooler(single) if isinstance(pooler, nn.Module) else single[:, 0]
    output = BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=single, pooler_output=pooled)
    words = torch.zeros(len(single), 1, dtype=torch.long, device=states.device)
    with _replaced(base, output):
        logits: Tensor = net(input_ids=words).logits
    return logits.unflatten(0, states.shape[:-1])


def base_model(net: PreTrainedModel) -> nn.Module:
    """The network below a classifier's head; ``TypeError`` where it has none."""
    base = getattr(net, net.base_model_prefix or "", None)
    if not isinstance(base, nn.Module) or base is net:
        raise TypeError(
            f"{type(net).__name__}: expected a network with a head upon a base model, found no base model "
            f"{net.base_model_prefix!r}"
        )
    return base


@contextmanager
def _replaced(module: nn.Module, output: BaseModelOutputWithPoolingAndCrossAttentions) -> Iterator[None]:
    """The module gives this output, whatever it is given."""
    before = vars(module).get("forward")
    vars(module)["forward"] = lambda *_, **__: output
    try:
        yield
    finally:
        del vars(module)["forward"]
        if before is not None:
            vars(module)["forward"] = before


TOLERANCE = 1e-3
"""Tolerance between two computations of the same logits."""


class WordRatings(NamedTuple):
    """Ratings of S input words for each of T output words, by attention and lexical probe; T = 1 for classifiers."""

    attention: Tensor
    """Attention weights, mean over heads, ``[B, T, S]``; 0 at padding."""
    probe: Tensor
    """Logarithm of the lexical probe, ``[B, T, S]``; -inf at padding."""
    mask: Tensor
    """Bool ``[B, S]``, False at padding of the input."""
    query_mask: Tensor
    """Bool ``[B, T]``, False at padding of the output."""
    correct: Tensor
    """Bool ``[B, T]``, True where the label has the network's largest logit."""


def rate_words(net: PreTrainedModel, batch: Mapping[str, Tensor]) -> WordRatings:
    r"""Computes attention :math:`\alpha` and lexical probe :math:`\beta` (Snell et al. 2021, Eq. 1, 4, 7, 9).

    The probe is the probability of the right output y if attention were only on input word l, with encoder state
    :math:`h_l`, decoder state :math:`s_t` and the output network N including its softmax:

    - :class:`probattn.models.RecurrentForTranslation`: :math:`\beta_{t,l} = N([K h_l, s_t])_{y_t}` with K heads, whose
      contexts are summed.
    - :class:`probattn.models.SelfAttentiveForSequenceClassification`: :math:`\beta_l = N(h_l)_y`, all heads at l.
    - Other Hugging Face classifiers: :math:`\beta_l = N(h_l)_y` with their classification head and states of the last
      layer; :math:`\alpha` is the last layer's attention at the position that the head reads. These states depend on
      all words, so here the probe does not describe the word at l alone.

    Args:
        net: one of these networks, converted or not. Latent weights are replaced by their posterior expectation.
        batch: arguments of the forward pass, with ``labels`` (int64 ``[B]``, or ``[B, T]`` and -100 at padding).

    Returns:
        The ratings, without gradients; training or evaluation mode of the network is not changed.

    Raises:
        TypeError: the probe is not defined for the network.
        ValueError: no labels, a network with one output, or a head that does not read the first or last word alone.

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


def _translation(net: RecurrentForTranslation, inputs: Mapping[str, Tensor], labels: Tensor) -> WordRatings:
    mask, valid = valid_positions(inputs.get("attention_mask"), inputs["input_ids"]), labels != IGNORED
    with kept_outputs(net) as outputs:
        (call,) = capture(net, inputs).values()
    assert call.weights is not None
    output, target = outputs[net], labels.where(valid, 0)
    heads, states = net.config.num_attention_heads, output.encoder_last_hidden_state
    of = (states, output.decoder_last_hidden_state, target, mask)
    probe = lexical_probe(lambda context, state: net.output(heads * context, state), *of, log=True)
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
    mask, base = valid_positions(inputs.get("attention_mask"), inputs["input_ids"]), base_model(net)
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
    pooled = isinstance(net, SelfAttentiveForSequenceClassification)
    position = 0 if pooled else _read_position(net, states, logits, mask, weights)
    attention = weights[rows, :, position].mean(dim=1).masked_fill(~mask, 0)
    probe = classifier_probe(lambda hidden: own_head(net, hidden), states, labels, mask, log=True)
    correct = logits.argmax(dim=-1) == labels
    valid = torch.ones_like(correct)[:, None]
    return WordRatings(attention[:, None], probe[:, None], mask, valid, correct[:, None])


def _read_position(
    net: PreTrainedModel, states: Tensor, logits: Tensor, mask: Tensor, weights: Tensor
) -> Tensor:
    """The position that the head reads, ``[B]``: the first word of each text or its last.

    A head whose initial weights are near 0 gives the same logits for both. Behind causal attention, in which the first
    word attends to itself alone, the last one is tried first.
    """
    rows = torch.arange(len(mask), device=mask.device)
    positions = torch.arange(mask.shape[1], device=mask.device)
    first, last = mask.int().argmax(dim=1), (positions * mask).argmax(dim=1)
    causal = not bool((weights[rows, :, first] * (positions > first.unsqueeze(-1)).unsqueeze(1)).any())
    for position in (last, first) if causal else (first, last):
        if torch.allclose(own_head(net, states[rows, position]), logits, atol=TOLERANCE, rtol=TOLERANCE):
            return position
    raise ValueError(
        f"rate_words: expected a {type(net).__name__} whose head reads the first or the last word, its logits come "
        "from neither alone; compute its ratings with probattn.probes.classifier_probe"
    )


def word_saliency(net: PreTrainedModel, batch: Batch, *, kind: SaliencyKind = "norm") -> Tensor:
    r"""Computes the gradient saliency :math:`\Delta` of every input word (Snell et al. 2021, section 5.1).

    It is computed from the gradient of the log-probability of the right output with respect to the word's embedding;
    see :func:`probattn.probes.gradient_saliency`.

    Args:
        net: a network that takes ``inputs_embeds`` and gives ``logits`` ``[B, C]`` or ``[B, T, V]``: a Hugging Face
            classifier, :class:`probattn.models.RecurrentForTranslation` or another encoder-decoder.
        batch: arguments of its forward pass, with ``labels`` (int64 ``[B]``, or ``[B, T]`` and -100 at padding).
        kind: how the gradient becomes a number; the kinds of :func:`probattn.probes.gradient_saliency`.

    Returns:
        Saliency ``[B, T, S]`` of S input words for T outputs (1 for a classifier); 0 at padding of the input.

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
        return logits.log_softmax(dim=-1).gather(-1, target[..., None])[..., 0]

    with untouched(net), without_cudnn():
        words = torch.arange(table.num_embeddings, device=table.weight.device)
        weight, real = table(words) if kind == "replace" else None, None if mask is None else mask.bool()
        saliency = gradient_saliency(score, table(batch["input_ids"]), real, kind=kind, table=weight)
    return saliency if saliency.ndim == 3 else saliency[:, None]
