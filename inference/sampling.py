"""Plain passes that draw (a network's forward, pipelines, generation), and generated texts with their uncertainty."""

from __future__ import annotations

import inspect
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar, cast

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.checks import check_integer
from probattn.inference.configuration import attention_sites, network_name
from probattn.inference.guide import site_posterior
from probattn.inference.predictive import rows_per_pass
from probattn.inference.session import evaluating
from probattn.sites.noise import PlacedNoise, hashed
from probattn.sites.posterior import SitePosterior
from probattn.sites.upward import SharedUpward

Network = TypeVar("Network", bound=nn.Module)


@contextmanager
def sampling(net: Network, *, seed: int = 0, draws: int = 1) -> Iterator[Network]:
    """Makes plain passes of a network draw its attention from the posterior, within a ``with`` block.

    ``net(**batch)``, ``pipeline(...)`` and ``net.generate(...)`` work as they do without, with one draw of all
    attention weights for each row. Each plain pass draws anew. All passes of one ``generate`` belong to one draw for
    each prompt: the noise is a function of the token's place (:class:`probattn.sites.PlacedNoise`), so that decoding
    with a cache gives what decoding without gives, and all beams and returned sequences of a prompt share it. The law
    is that of :func:`probattn.inference.posterior_predict`; the numbers are others.

    Args:
        net: a network with attention sites, converted or of :class:`probattn.MultiheadAttention`, or a program of one;
            in evaluation mode, unless dropout is wanted too.
        seed: non-negative integer; the same seed gives the same draws, whatever ``draws`` is.
        draws: P, draws of each row. With more than one, the inputs are repeated and outputs have ``P * B`` rows, draw
            after draw: ``output.logits.unflatten(0, (P, -1))``, ``net.generate(...).unflatten(0, (P, -1))``.

    Yields:
        The network.

    Raises:
        TypeError: what is given is no module.
        ValueError: a network without attention sites, a seed below 0, fewer than one draw, or a generation from
            several draws with inputs that cannot be repeated.
        RuntimeError: the network is being sampled already.

    Example:
        >>> import probattn
        >>> from transformers import BertConfig, BertModel
        >>> from probattn.models import convert
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertModel(config), probattn.BayesianAttention()).eval()
        >>> ids = torch.ones(3, 4, dtype=torch.long)
        >>> with probattn.sampling(net, seed=1, draws=5), torch.no_grad():
        ...     net(ids).pooler_output.unflatten(0, (5, -1)).shape
        torch.Size([5, 3, 8])
    """
    check_integer("sampling", "seed", seed, minimum=0)
    check_integer("sampling", "draws", draws, minimum=1)
    if not isinstance(net, nn.Module):
        raise TypeError(f"sampling: expected a network, a torch.nn.Module, got {type(net).__name__}")
    with folded_draws(net, seed, draws):
        yield net


@contextmanager
def folded_draws(net: nn.Module, seed: int, draws: int, first: int = 0) -> Iterator[None]:
    """:func:`sampling` of the draws from number ``first`` on."""
    with ExitStack() as stack:
        _Sampler(seed, draws, first).attach(net, stack)
        yield


@dataclass
class _DrawnForward:
    """The forward pass of a site under a sampler, in the sampler's thread."""

    sampler: _Sampler
    forward: Callable[..., Any]

    @property
    def is_active(self) -> bool:
        """Whether it draws in this thread."""
        return self.sampler.is_active

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.sampler if self.is_active else nullcontext():
            return self.forward(*args, **kwargs)


class _Sampler(Messenger):
    """Answers attention sites with draws; entered around each call of a site in the thread that began the block."""

    def __init__(self, seed: int, draws: int, first: int = 0) -> None:
        super().__init__()
        self._seed, self._draws, self._first = seed, draws, first
        self._thread = threading.get_ident()
        self._shared = SharedUpward()
        self._calls: Counter[str] = Counter()
        self._keys: dict[str, Tensor] = {}
        """Of each site in the generation under way, one a prompt: the same in all its passes."""
        self._generations = 0
        self._prompts: int | None = None
        """Number of prompts of the generation under way, with those of all draws."""

    @property
    def is_active(self) -> bool:
        """Whether it draws in this thread: elsewhere its hooks do nothing, and passes are those outside a driver."""
        return threading.get_ident() == self._thread

    def attach(self, net: nn.Module, stack: ExitStack) -> None:
        """Hooks the network's sites, its inputs and its ``generate``; the stack undoes it."""
        sites = attention_sites(net).values()
        if not sites:
            raise ValueError(
                f"sampling: {network_name(net)} has no attention sites; convert it first with probattn.models.convert"
            )
        for module in net.modules():
            if "generate" in vars(module):
                network = type(module).__name__
                raise RuntimeError(f"sampling: {network} is sampled already; leave the block first")
        for site in sites:
            forward = vars(site).get("forward")
            vars(site)["forward"] = _DrawnForward(self, site.forward)
            if forward is None:
                stack.callback(vars(site).pop, "forward")
            else:
                stack.callback(vars(site).update, forward=forward)
        if self._draws > 1:
            stack.callback(net.register_forward_pre_hook(self._repeat_inputs, with_kwargs=True).remove)
        for module in net.modules():
            if callable(getattr(type(module), "generate", None)):
                vars(module)["generate"] = self._generating(cast(Any, module).generate)
                stack.callback(vars(module).pop, "generate")

    def _pyro_sample(self, msg: Message) -> None:
        posterior = site_posterior(msg)
        if posterior is not None and msg["value"] is None:
            noise = self._noise(str(msg["name"]), posterior)
            if torch.is_grad_enabled():
                msg["value"] = posterior.draw(noise, with_kl=False)
            else:
                msg["value"] = posterior.predict(noise, self._shared)

    def _noise(self, name: str, posterior: SitePosterior) -> PlacedNoise:
        """Noise of one call: a key for each row, from the draw, the datum and the pass that it belongs to."""
        rows = len(posterior.inputs.raw)
        if self._prompts is None:
            self._calls[name] += 1
            passes, data = ("pass", self._calls[name]), rows
        else:
            passes, data = ("generation", self._generations), self._prompts
        if rows % data or data % self._draws:
            raise ValueError(
                f"site {name!r}: expected a multiple of {data} rows, {self._draws} draws among them, got {rows}; call "
                "the whole network"
            )
        keys = self._keys.get(name)
        if keys is None:
            draws = range(self._first, self._first + self._draws)
            words = product(draws, range(data // self._draws))
            hashes = [hashed(self._seed, name, *passes, draw, datum) for draw, datum in words]
            keys = torch.tensor(hashes, device=posterior.inputs.raw.device)
            if self._prompts is not None:
                self._keys[name] = keys
        return PlacedNoise(keys.repeat_interleave(rows // data), posterior.inputs.origin, self._draws)

    def _repeat_inputs(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._prompts is not None or not self.is_active:
            return None
        return self._repeated(args), self._repeated(kwargs)

    def _repeated(self, value: Any) -> Any:
        """Tensors repeated draw after draw, in tuples and mappings too; numbers and flags as they are."""
        if isinstance(value, Tensor) and value.dim() > 0:
            return value.repeat(self._draws, *[1] * (value.dim() - 1))
        if isinstance(value, Mapping):
            return {name: self._repeated(item) for name, item in value.items()}
        return tuple(map(self._repeated, value)) if isinstance(value, tuple) else value

    def _generating(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        def sampled(inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
            if self._prompts is not None or not self.is_active:
                return generate(inputs, *args, **kwargs)
            if self._draws > 1:
                self._refuse_unrepeatable(kwargs)
                inputs, kwargs = self._repeated(inputs), self._repeated(kwargs)
            named = (kwargs.get(name) for name in ("input_ids", "inputs_embeds"))
            candidates = [inputs, *named, *kwargs.values()]
            first = next((item for item in candidates if isinstance(item, Tensor) and item.dim() > 0), None)
            self._prompts = self._draws if first is None else len(first)
            self._generations += 1
            try:
                return generate(inputs, *args, **kwargs)
            finally:
                self._prompts = None
                self._keys.clear()

        return sampled

    def _refuse_unrepeatable(self, kwargs: Mapping[str, Any]) -> None:
        for name in ("cache", "past_key_values", "encoder_outputs", "assistant_model", "streamer"):
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"sampling: expected no {name} in a generation of {self._draws} draws, which cannot be repeated; "
                    "leave it out or use draws=1"
                )


@dataclass(frozen=True, eq=False)
class Generation:
    r"""N generated sequences with the uncertainty of their T tokens.

    With :math:`p_s(y_t \mid y_{<t}, x)` the probability of a token under draw s of P, and the predictive distribution
    :math:`\bar p = \frac 1P \sum_s p_s`, the uncertainties are those of Malinin and Gales (2021), section 3:

    .. math:: \mathrm H[\bar p], \quad \mathrm I = \mathrm H[\bar p] - \tfrac 1P \textstyle\sum_s \mathrm H[p_s], \quad
        \text{score} = \log \tfrac 1P \textstyle\sum_s \prod_t p_s(y_t \mid y_{<t}, x)

    Attributes:
        sequences: token ids as ``generate`` returns them, int64 ``[N, L]``; N is the number of prompts times
            ``num_return_sequences``, L the length, including the prompt if the network has no encoder.
        tokens: ids of the generated tokens, ``[N, T]``.
        mask: bool ``[N, T]``, False after the token that ends a sequence.
        log_probabilities: :math:`\log \bar p` of each generated token, ``[N, T]``, nats; 0 after the end.
        entropy: :math:`\mathrm H[\bar p]` at each generated token, ``[N, T]``, nats; 0 after the end.
        mutual_information: I of each generated token and the attention, ``[N, T]``, nats; 0 after the end.
        scores: the score of each sequence, ``[N]``, nats.
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
    """Generates with attention at its posterior expectation, then scores every token under draws of the attention.

    The sequences are those of ``net.generate(**inputs, **options)`` (greedy, sampled or beam search). For each draw one
    forward pass over the whole sequences then computes the probabilities of their tokens.

    Args:
        net: a converted network with a method ``generate``: a decoder, or an encoder with a decoder.
        inputs: tensors for ``generate``, usually ``input_ids`` and ``attention_mask``.
        draws: P, number of draws, >= 1.
        seed: seed of the draws, a non-negative integer.
        **options: options of ``generate``, such as ``max_new_tokens`` and ``num_beams``.

    Returns:
        Sequences, and entropy, mutual information and log-probability of each token.

    Raises:
        TypeError: the network has no method ``generate``.
        ValueError: a network without attention sites, a number out of its range, or no ``input_ids`` for a decoder.

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
        arguments, target = _forced(net, inputs, sequences)
        mask = until_the_end(net, target, options)
        mean = expected_entropy = torch.zeros((), device=target.device)
        log_probabilities = []
        chunk = max(1, rows_per_pass(target.device) // len(target))
        for first in range(0, draws, chunk):
            count = min(chunk, draws - first)
            with folded_draws(net, seed, count, first):
                logits = net(**arguments, use_cache=False).logits
            for item in logits.unflatten(0, (count, -1)):
                scores = item[:, -1 - target.shape[1] : -1] if _continues(net) else item
                log_p = scores.float().log_softmax(dim=-1)
                p = log_p.exp()
                mean, expected_entropy = mean + p, expected_entropy + torch.special.entr(p).sum(dim=-1)
                log_probabilities.append(log_p.gather(-1, target[..., None])[..., 0])
    entropy = torch.special.entr(mean / draws).sum(dim=-1)
    information = (entropy - expected_entropy / draws).clamp_min(0)
    drawn = torch.stack(log_probabilities).where(mask, 0.0)  # [P, N, T]
    log_p = drawn.logsumexp(dim=0) - math.log(draws)
    log_p, entropy, information = (one.where(mask, 0.0) for one in (log_p, entropy, information))
    scores = drawn.sum(dim=-1).logsumexp(dim=0) - math.log(draws)
    return Generation(sequences, target, mask, log_p, entropy, information, scores)


def _continues(net: Any) -> bool:
    return not net.config.is_encoder_decoder


def _forced(net: Any, inputs: Mapping[str, Tensor], sequences: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs of a pass over whole sequences, and the generated tokens ``[N, T]`` that it is to predict."""
    prompts = next(iter(inputs.values()))
    repeats = len(sequences) // len(prompts)
    repeated = {name: value.repeat_interleave(repeats, dim=0) for name, value in inputs.items()}
    if not _continues(net):
        return repeated | {"decoder_input_ids": sequences[:, :-1]}, sequences[:, 1:]
    ids = inputs.get("input_ids")
    if ids is None:
        listed = ", ".join(inputs)
        raise ValueError(f"generate_with_uncertainty: expected input_ids among the inputs, got {listed}")
    target = sequences[:, ids.shape[1] :]
    mask = repeated.get("attention_mask", torch.ones_like(repeated["input_ids"]))
    mask = torch.cat([mask, mask.new_ones(target.shape)], dim=1)
    arguments = repeated | {"input_ids": sequences, "attention_mask": mask}
    # As generate counts them, without the padding.
    if "position_ids" in inspect.signature(net.forward).parameters:
        arguments["position_ids"] = (mask.long().cumsum(dim=1) - 1).clamp_min(0)
    return arguments, target


def until_the_end(net: Any, target: Tensor, options: Mapping[str, Any]) -> Tensor:
    """True up to the first token that ends a sequence, that one included."""
    configured = getattr(options.get("generation_config"), "eos_token_id", net.generation_config.eos_token_id)
    ends = options.get("eos_token_id", configured)
    if ends is None:
        return torch.ones_like(target, dtype=torch.bool)
    last = torch.isin(target, torch.as_tensor(ends, device=target.device)).long()
    return last.cumsum(dim=1) - last == 0
