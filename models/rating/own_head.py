"""A classifier's own head, as a function of states: all that lies between the last hidden state and the logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from probattn.models.sentence import SelfAttentiveForSequenceClassification


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
    r"""Answer of a classifier if one state were all that its head reads.

    The head is the network's own code: its base model is put aside for one call, and each state replaces a
    text of one word. For the self-attentive classifier every head attends to that word, so that the state is repeated
    r times.

    Args:
        net: a Hugging Face classifier in evaluation mode, or
            :class:`probattn.models.SelfAttentiveForSequenceClassification`.
        states: ``[..., D]``.

    Returns:
        Logits ``[..., C]``.

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

    def answer(*_: Any, **__: Any) -> BaseModelOutputWithPoolingAndCrossAttentions:
        return output

    vars(module)["forward"] = answer
    try:
        yield
    finally:
        del vars(module)["forward"]
        if before is not None:
            vars(module)["forward"] = before
