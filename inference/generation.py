"""Generated texts with the uncertainty of each token under the posterior of attention."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probattn.checks import check_integer
from probattn.inference.predictive import rows_per_pass
from probattn.inference.sampling import folded_draws
from probattn.inference.session import evaluating


@dataclass(frozen=True, eq=False)
class Generation:
    r"""Generated sequences, and what draws of the attention say of them.

    With :math:`p_s(y_t \mid y_{<t}, x)` the probability of a token under draw s of P, and its predictive distribution
    :math:`\bar p = \frac 1P \sum_s p_s`, the uncertainties are those of Malinin and Gales (2021), section 3:

    .. math:: \mathrm H[\bar p], \quad \mathrm I = \mathrm H[\bar p] - \tfrac 1P \textstyle\sum_s \mathrm H[p_s], \quad
        \text{score} = \log \tfrac 1P \textstyle\sum_s \prod_t p_s(y_t \mid y_{<t}, x)

    Attributes:
        sequences: token numbers as ``generate`` returns them, int64 ``[N, L]``; N is prompts times returned sequences.
        tokens: the generated ones among them, ``[N, T]``.
        mask: bool ``[N, T]``, False after a sequence's end.
        log_probabilities: :math:`\log \bar p` of each generated token, ``[N, T]``, nats; 0 after the end.
        entropy: ``[N, T]``, nats; 0 after the end.
        mutual_information: ``[N, T]``, nats; 0 after the end.
        scores: log-probability of each sequence, ``[N]``, nats.
    """

    sequences: Tensor
    tokens: Tensor
    mask: Tensor
    log_probabilities: Tensor
    entropy: Tensor
    mutual_information: Tensor
    scores: Tensor

    def __repr__(self) -> str:
        rows, tokens = self.tokens.shape
        return f"Generation({rows} sequences of up to {tokens} tokens)"


def generate_with_uncertainty(
    net: Any, inputs: Mapping[str, Tensor], *, draws: int = 20, seed: int = 0, **options: Any
) -> Generation:
    """Generates as the network does at its posterior mean, then scores every token under draws of the attention.

    The text is that of ``net.generate(**inputs, **options)``: greedy, sampled or from beams. Each draw then reads it
    whole, as decoding under :func:`probattn.sampling` would have.

    Args:
        net: a converted network that generates: decoder alone, or encoder and decoder.
        inputs: what ``generate`` takes, ``input_ids`` and ``attention_mask`` (or an encoder's other inputs).
        draws: P, >= 1.
        seed: non-negative integer.
        **options: for ``generate``, such as ``max_new_tokens`` and ``num_beams``.

    Returns:
        Sequences, and entropy, mutual information and log-probability of each token.

    Raises:
        TypeError: the network does not generate.
        ValueError: a network without attention sites, a number out of its range, or options that are not for here.

    Example:
        >>> import probattn
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from probattn.models import convert
        >>> config = GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, bos_token_id=1, eos_token_id=2)
        >>> net = convert(GPT2LMHeadModel(config), probattn.BayesianAttention()).eval()
        >>> prompt = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3).long()}
        >>> out = generate_with_uncertainty(net, prompt, draws=3, max_new_tokens=4, min_new_tokens=4, pad_token_id=0)
        >>> out.entropy.shape, bool((out.mutual_information >= -1e-6).all())
        (torch.Size([1, 4]), True)
    """
    check_integer("generate_with_uncertainty", "draws", draws, minimum=1)
    check_integer("generate_with_uncertainty", "seed", seed, minimum=0)
    if not callable(getattr(net, "generate", None)):
        raise TypeError(
            f"generate_with_uncertainty: expected a network that generates, got {type(net).__name__}; load it with "
            "AutoModelForCausalLM or AutoModelForSeq2SeqLM"
        )
    with evaluating(net):
        answer = net.generate(**inputs, **(options | {"return_dict_in_generate": True}))
        sequences: Tensor = answer.sequences
        given, target = _teacher_forced(net, inputs, sequences)
        mask = until_the_end(net, target, options)
        scored = _Scores(target)
        most = max(1, rows_per_pass(target.device) // len(target))
        for first in range(0, draws, most):
            count = min(most, draws - first)
            with folded_draws(net, seed, count, first):
                logits = net(**given, use_cache=False).logits
            for item in logits.unflatten(0, (count, -1)):
                scored.add(item[:, -1 - target.shape[1] : -1] if _continues(net) else item)
    return scored.result(sequences, mask, draws)


class _Scores:
    """Sums over draws."""

    def __init__(self, target: Tensor) -> None:
        self.target = target
        self.mean: Tensor | None = None
        self.expected_entropy = torch.zeros(target.shape, device=target.device)
        self.log_probabilities: list[Tensor] = []

    def add(self, logits: Tensor) -> None:
        """Takes in a draw's logits ``[N, T, V]``."""
        log_p = logits.float().log_softmax(dim=-1)
        p = log_p.exp()
        self.mean = p if self.mean is None else self.mean + p
        self.expected_entropy = self.expected_entropy + torch.special.entr(p).sum(dim=-1)
        self.log_probabilities.append(log_p.gather(-1, self.target[..., None])[..., 0])

    def result(self, sequences: Tensor, mask: Tensor, draws: int) -> Generation:
        """The figures of all draws."""
        assert self.mean is not None
        mean, zero = self.mean / draws, torch.zeros_like(self.expected_entropy)
        entropy = torch.special.entr(mean).sum(dim=-1)
        each = torch.stack(self.log_probabilities).where(mask, 0.0)  # [P, N, T]
        token = each.logsumexp(dim=0) - math.log(draws)
        return Generation(
            sequences,
            self.target,
            mask,
            token.where(mask, zero),
            entropy.where(mask, zero),
            (entropy - self.expected_entropy / draws).clamp_min(0).where(mask, zero),
            each.sum(dim=-1).logsumexp(dim=0) - math.log(draws),
        )


def _continues(net: Any) -> bool:
    return not net.config.is_encoder_decoder


def _teacher_forced(
    net: Any, inputs: Mapping[str, Tensor], sequences: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs of a pass over whole sequences, and the generated tokens ``[N, T]`` that it is to predict."""
    prompts = next(iter(inputs.values()))
    each = len(sequences) // len(prompts)
    repeated = {name: value.repeat_interleave(each, dim=0) for name, value in inputs.items()}
    if not _continues(net):
        return repeated | {"decoder_input_ids": sequences[:, :-1]}, sequences[:, 1:]
    ids = inputs.get("input_ids")
    if ids is None:
        raise ValueError(
            f"generate_with_uncertainty: expected input_ids among the inputs, got {', '.join(inputs)}"
        )
    target = sequences[:, ids.shape[1] :]
    mask = repeated.get("attention_mask", torch.ones_like(repeated["input_ids"]))
    mask = torch.cat([mask, mask.new_ones(target.shape)], dim=1)
    given = repeated | {"input_ids": sequences, "attention_mask": mask}
    if (
        "position_ids" in inspect.signature(net.forward).parameters
    ):  # as generate counts them, without the padding
        given["position_ids"] = (mask.long().cumsum(dim=1) - 1).clamp_min(0)
    return given, target


def until_the_end(net: Any, target: Tensor, options: Mapping[str, Any]) -> Tensor:
    """True up to the first token that ends a sequence, that one included."""
    configured = getattr(options.get("generation_config"), "eos_token_id", net.generation_config.eos_token_id)
    ends = options.get("eos_token_id", configured)
    if ends is None:
        return torch.ones_like(target, dtype=torch.bool)
    last = torch.isin(target, torch.as_tensor(ends, device=target.device)).long()
    return last.cumsum(dim=1) - last == 0
