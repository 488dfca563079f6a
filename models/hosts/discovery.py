"""Finding the attention calls of a Hugging Face network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
import transformers
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import PreTrainedModel

from probattn.models.hosts.adapter import ATTRIBUTE
from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.dry_run import UnknownInputError, dry_inputs, kept_generators, tensors, untouched
from probattn.models.hosts.eager import (
    Attended,
    HostCall,
    UnreadableError,
    carries_bias,
    has_bridge,
    own_keys,
    read_mask,
)
from probattn.models.hosts.interface import switch
from probattn.models.hosts.undriven import IMPLEMENTATION
from probattn.sites import AttentionMask, attention_scores
from probattn.sites.layout import PAIRS
from probattn.sites.scores import repeat_heads

FIRST_RELEASES = {"modeling_modernbert": "5.7", "modeling_swin": "5.9", "modeling_t5": "5.15"}
"""The first release of transformers in which a family's file goes through the attention interface, unless it is 5.0."""


@dataclass(frozen=True)
class _Recorded:
    """One call as it came: its module and the shapes and mask it was given."""

    module: nn.Module
    query: torch.Size
    key: torch.Size
    valid: Tensor | None
    window: int | None


FAILURES: tuple[type[Exception], ...] = (ArithmeticError, AssertionError, AttributeError, LookupError)
FAILURES += (NameError, RuntimeError, TypeError, ValueError)
"""What networks raise for input of a form that they do not take."""


class _Recorder:
    """Replaces every module's site and records every call."""

    def __init__(self) -> None:
        self.records: list[_Recorded] = []

    def attend(self, host: HostCall) -> Attended:
        """Attends as the family's eager function does, and checks that a site would do the same."""
        attended = host.eager()
        try:
            valid = _check_reading(host, attended[0])
        except RuntimeError as error:
            shapes = [list(tensor.shape) for tensor in (host.query, host.key, host.value)]
            raise UnreadableError(
                f"{type(host.module).__name__}: expected queries, keys and values [B, H, T, D] and a mask of their "
                f"pairs, got {shapes} ({error})"
            ) from error
        window = host.options.get("sliding_window")
        self.records.append(_Recorded(host.module, host.query.shape, host.key.shape, valid, window))
        return attended

    def run(
        self, net: PreTrainedModel, network: PreTrainedModel, inputs: Mapping[str, Tensor]
    ) -> tuple[list[Tensor], set[str]]:
        """Records a pass; the network's answer, and the names of the modules that ran once."""
        runs: Counter[int] = Counter()
        for module in net.modules():
            vars(module)[ATTRIBUTE] = self
        counting = register_module_forward_pre_hook(lambda module, _: runs.update([id(module)]))
        try:
            answer = tensors(network(**inputs))
        finally:
            counting.remove()
            for module in net.modules():
                vars(module).pop(ATTRIBUTE, None)
        if not self.records:
            raise UnreadableError(
                f"{type(net).__name__}: no attention call goes through transformers' attention interface; this family "
                "computes attention by itself and cannot be converted"
            )
        return answer, {name for name, module in net.named_modules() if runs[id(module)] == 1}


def find_calls(net: PreTrainedModel) -> AttentionCalls:
    """The attention calls of a network that is not converted, from two passes over a short input."""
    refuse_unsupported(net)
    base = cast(PreTrainedModel, net.base_model)
    if net.device.type == "meta":
        owner = type(base).__name__
        raise ValueError(f"{owner}: expected a network with weights, got one on the meta device")
    failure: Exception | None = None
    with untouched(net):
        for network, inputs in _forms(base, net):
            recorder = _Recorder()
            try:
                switch(net, "eager")
                with kept_generators(net):  # so that both passes draw the same, if they draw
                    eager = tensors(network(**inputs))
                switch(net, IMPLEMENTATION)
                recorded, once = recorder.run(net, network, inputs)
            except UnreadableError:
                raise
            except FAILURES as error:
                failure = failure or error
            else:
                _check_answers(network, eager, recorded)
                return _describe(net, recorder.records, once)
    reason = f"{type(failure).__name__}: {failure}"
    raise ValueError(
        f"{type(net).__name__}: expected a network that runs on a short input of the forms known; it gave {reason}"
    ) from failure


def _forms(
    base: PreTrainedModel, net: PreTrainedModel
) -> Iterator[tuple[PreTrainedModel, dict[str, Tensor]]]:
    """The network without its head, then the whole network, each with what it may take; an error if that is nothing."""
    networks = [base] if base is net else [base, net]
    unknown: ValueError | None = None
    accepted = False
    for network in networks:
        try:
            for inputs in dry_inputs(network):
                accepted = True
                yield network, inputs
        except UnknownInputError as error:
            unknown = error
    if unknown is not None and not accepted:
        raise unknown


def refuse_unsupported(net: object) -> None:
    """Refuses what cannot be converted, with the reason (``TypeError``)."""
    if isinstance(net, nn.DataParallel):
        raise TypeError(
            "DataParallel: its threads would share Pyro's handler stack; convert the network itself and launch one "
            "process per device (accelerate launch, torchrun)"
        )
    if not isinstance(net, PreTrainedModel):
        raise TypeError(
            f"expected a Hugging Face network (transformers.PreTrainedModel), got {type(net).__name__}; convert a "
            "network before wrapping it, and for networks of your own use probattn.MultiheadAttention or "
            "probattn.attention"
        )
    for module in net.modules():
        if not isinstance(module, PreTrainedModel) or has_bridge(module):
            continue
        if not type(module)._can_set_attn_implementation():
            first = FIRST_RELEASES.get(type(module).__module__.rpartition(".")[-1])
            raise TypeError(
                f"{type(module).__name__}: in transformers {transformers.__version__} this family computes attention "
                "by itself, not through the attention interface, so its weights cannot be made latent"
                + (f"; install transformers {first} or newer" if first else "")
            )


def _check_answers(net: nn.Module, eager: list[Tensor], recorded: list[Tensor]) -> None:
    """Refuses a network that looks at the name of its attention implementation when it prepares its attention."""
    for expected, answer in zip(eager, recorded, strict=True):
        alike, limits = expected.shape == answer.shape, {"rtol": 0, "atol": _tolerance(expected)}
        if not alike or not torch.allclose(answer, expected, **limits, equal_nan=True):
            difference = f"by {(answer - expected).abs().max().item():.1e}" if alike else "in shape"
            raise UnreadableError(
                f"{type(net).__name__}: this family prepares its attention in another way under the name 'eager' than "
                f"under names of others (outputs differ {difference}), so its weights cannot be made latent"
            )


def _check_reading(host: HostCall, expected: Tensor) -> Tensor | None:
    """Validity of the pairs, after making sure that scores, mask and biases as read give the family's own output."""
    query, key, value, options = host.query, host.key, host.value, host.options
    read = read_mask(host.module, host.mask)
    validity = None if read.valid is None else AttentionMask(read.valid.expand(len(query), -1, -1, -1))
    biases = [bias for bias in (read.bias, options.get("position_bias")) if bias is not None]
    terms = {"scale": options.get("scaling"), "softcap": options.get("softcap")}
    bias = sum(biases[1:], biases[0]) if biases else None
    scores = attention_scores(query, repeat_heads(key, query.shape[1]), validity, bias=bias, **terms)
    weights = (PAIRS if validity is None else validity).weights(scores)
    output = weights @ repeat_heads(value, query.shape[1]).to(scores.dtype)
    error = (output - expected.transpose(1, 2).to(output.dtype)).abs()
    if validity is not None:
        error = error * validity.row_weight  # rows without any key are not compared, nor is padding
        if query.shape[2] == key.shape[2]:
            error = error * own_keys(validity.valid, query.shape[2])[:, None, :, None]
    if bool(error.isnan().any()):
        raise UnreadableError(
            f"{type(host.module).__name__}: expected finite outputs, got NaN or infinity; weights below its attention "
            "are not finite or too large: train the network again, or go on from an earlier checkpoint"
        )
    if not bool(error.max() <= _tolerance(value)):
        raise UnreadableError(
            f"{type(host.module).__name__}: this family's attention is more than a softmax of scores, mask and "
            f"position biases (outputs differ by {error.max().item():.1e}), so its weights cannot be made latent"
        )
    return read.valid


def _tolerance(tensor: Tensor) -> float:
    """Of numbers that rounding alone should set apart."""
    relative = 1e-4 if tensor.dtype in (torch.float32, torch.float64) else 5e-2
    finite = tensor[tensor.isfinite()]
    return relative * (1 + finite.abs().max().item() if finite.numel() else 1)


def _describe(net: PreTrainedModel, records: list[_Recorded], once: set[str]) -> AttentionCalls:
    names = {id(module): name for name, module in net.named_modules()}
    repeated = Counter(id(record.module) for record in records)
    stacks = [_stack(names[id(record.module)]) for record in records]
    pairs = list(zip(stacks, records, strict=True))
    decoders = {stack for stack, record in pairs if _is_causal(record)}
    # A stack without self attention is recognised by its ``is_decoder``.
    decoders |= {stack for stack, record in pairs if getattr(record.module, "is_decoder", False)}
    counts: Counter[int] = Counter()
    layers: Counter[tuple[str, str]] = Counter()
    latest: dict[str, tuple[str, int]] = {}
    calls: list[AttentionCall] = []
    for record, stack in zip(records, stacks, strict=True):
        kind: Literal["self", "cross"] = "self" if record.query[2] == record.key[2] else "cross"
        index, name = counts[id(record.module)], names[id(record.module)]
        counts[id(record.module)] += 1
        call = AttentionCall(
            name=f"{name}#{index}" if repeated[id(record.module)] > 1 else name,
            module=name,
            index=index,
            kind=kind,
            causal=_is_causal(record),
            window=record.window,
            rows_alike=record.window is None
            and (record.valid is None or bool((record.valid == record.valid[:, :, :1]).all())),
            stack=stack,
            layer=layers[stack, kind],
            decoder=stack in decoders,
            owner=_owner(stack, once),
            num_heads=record.query[1],
            num_key_value_heads=record.key[1],
            head_dim=record.key[3],
            windowed=_is_windowed(record),
            shape=(record.query[0] // 2, record.query[2], record.key[2]),
            max_positions=_max_positions(net, record),
            query_source=latest.get(stack) if kind == "cross" else None,
        )
        if kind == "self":
            latest[stack] = name, index
        layers[stack, kind] += 1
        calls.append(call)
    return AttentionCalls(calls)


def _is_causal(record: _Recorded) -> bool:
    queries, keys = record.query[2], record.key[2]
    if record.valid is None or queries != keys or queries == 1:
        return False
    above = torch.ones(queries, keys, dtype=torch.bool, device=record.valid.device).triu(1)
    return not bool((record.valid & above).any())


def _is_windowed(record: _Recorded) -> bool:
    if carries_bias(record.module):
        return True
    if record.query[0] != 2:
        raise TypeError(
            f"{type(record.module).__name__}: attends over a batch of {record.query[0]} for 2 inputs; only Swin's way "
            "of folding parts of an input into the batch is known"
        )
    return False


def _stack(name: str) -> str:
    """Everything before the first number: the list of layers; the parent where there is no number."""
    names = name.split(".")
    numbers = [index for index, child in enumerate(names) if child.isdigit()]
    return ".".join(names[: numbers[0]] if numbers else names[:-1])


def _owner(stack: str, once: set[str]) -> str:
    """The nearest module around a stack that ran exactly once."""
    owner = stack
    while owner and owner not in once:
        owner = owner.rpartition(".")[0]
    return owner


def _max_positions(net: PreTrainedModel, record: _Recorded) -> int | None:
    config = getattr(record.module, "config", net.config)
    pictures = getattr(config, "image_size", None) is not None and not hasattr(net, "dry_inputs")
    if record.query[2] == 1 or pictures:  # a single query, or patches alone: as many in every pass
        return int(record.query[2])
    for name in ("max_position_embeddings", "n_positions"):
        longest = getattr(config, name, None)
        if longest is not None:
            return int(longest)
    return None
