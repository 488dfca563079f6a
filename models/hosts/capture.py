"""What the attention calls of a network were handed on a batch, and what weights they gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from probattn.models.hosts.adapter import ATTRIBUTE, IMPLEMENTATION, Attended, own_attention
from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.discovery import find_calls
from probattn.models.hosts.dry_run import untouched
from probattn.models.hosts.interface import switch
from probattn.models.hosts.masks import own_keys, read_mask
from probattn.sites import AttentionMask
from probattn.sites.scores import repeat_heads


@dataclass(frozen=True, eq=False)
class CapturedCall:
    """One attention call of a forward pass.

    Attributes:
        query: ``[B, H, T, D]``.
        key: ``[B, H, S, D]``, grouped heads repeated.
        query_valid: bool ``[B, T]``, True for real tokens.
        key_valid: bool ``[B, S]``, True for keys that some real query may attend to.
        weights: ``[B, H, T, S]``; of a latent call those of the posterior expectation. None where the network's own
            attention function gives none.
        value: ``[B, G, S, E]``, heads that share values once.
        output: what the heads hand to the output projection, ``[B, H, T, E]``.
    """

    query: Tensor
    key: Tensor
    query_valid: Tensor
    key_valid: Tensor
    weights: Tensor | None
    value: Tensor
    output: Tensor


def capture(
    net: PreTrainedModel, batch: Mapping[str, Tensor], calls: AttentionCalls | None = None
) -> dict[str, CapturedCall]:
    """Runs a network once in evaluation mode and keeps what its attention calls saw; the network stays as it was.

    Args:
        net: a Hugging Face network, converted or not.
        batch: keyword arguments of its forward pass.
        calls: which calls to keep, as :func:`~probattn.models.inspect` lists them; all by default.

    Returns:
        The calls by name, in the order of the pass. A host that folds windows into its batch has B times as many rows.

    Raises:
        TypeError: the network's attention is not within reach, see :func:`~probattn.models.inspect`.
        ValueError: a call that is wanted did not take place.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> found = capture(BertModel(config), {"input_ids": torch.ones(3, 5, dtype=torch.long)})
        >>> [(name, list(call.query.shape)) for name, call in found.items()]
        [('encoder.layer.0.attention.self', [3, 2, 5, 4])]
    """
    known = find_calls(net)
    wanted = known if calls is None else calls
    recorder = _Recorder(net, known)
    with untouched(net):
        switch(net, IMPLEMENTATION)
        for module in net.modules():
            # Beside a converted module's own submodule of that name, which it hides until the pass is over.
            vars(module)[ATTRIBUTE] = recorder
        net(**batch)
    missing = [call.name for call in wanted if call.name not in recorder.found]
    if missing:
        raise ValueError(
            f"{missing[0]}: expected this attention call in the forward pass, got {', '.join(recorder.found) or 'none'}"
        )
    return {call.name: recorder.found[call.name] for call in wanted}


class _Recorder:
    """Stands where a converted module has its site, lets it do its work, and keeps what came by."""

    def __init__(self, net: PreTrainedModel, calls: AttentionCalls) -> None:
        self.found: dict[str, CapturedCall] = {}
        self._names = {id(module): name for name, module in net.named_modules()}
        self._calls: dict[tuple[str, int], AttentionCall] = {
            (call.module, call.index): call for call in calls
        }
        self._seen: Counter[str] = Counter()
        self._queries: dict[str, Tensor] = {}

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: Mapping[str, Any],
    ) -> Attended:
        """Attends as the module would without a recorder."""
        attended = own_attention(module, query, key, value, mask, options)
        name = self._names[id(module)]
        call = self._calls[name, self._seen[name]]
        self._seen[name] += 1
        valid = read_mask(module, mask).valid
        named: Tensor | None = options.get("query_mask")
        real = self._real_queries(call, query, valid) if named is None else named
        self.found[call.name] = CapturedCall(
            query=query,
            key=repeat_heads(key, query.shape[1]),
            query_valid=real,
            key_valid=_valid_keys(valid, real, key),
            weights=attended[1],
            value=value,
            output=attended[0].transpose(1, 2),
        )
        return attended

    def _real_queries(self, call: AttentionCall, query: Tensor, valid: Tensor | None) -> Tensor:
        """A self attention's mask says which queries are real; a cross attention's are those of the one before it."""
        rows, _, length, _ = query.shape
        everything = query.new_ones(rows, length, dtype=torch.bool)
        if call.kind == "cross":
            known = self._queries.get(call.stack)
            return everything if known is None or known.shape != everything.shape else known
        real = everything if valid is None else own_keys(valid.expand(rows, -1, -1, -1), length)
        self._queries[call.stack] = real
        return real


def _valid_keys(valid: Tensor | None, real: Tensor, key: Tensor) -> Tensor:
    rows, _, length, _ = key.shape
    if valid is None:
        return key.new_ones(rows, length, dtype=torch.bool)
    return AttentionMask(valid.expand(rows, -1, -1, -1), real).key_valid.any(dim=1)
