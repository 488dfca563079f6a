"""Plain passes that draw: a network's forward, pipelines and generation under sampled attention."""

from __future__ import annotations

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
from probattn.sites.noise import PlacedNoise, hashed
from probattn.sites.posterior import SitePosterior
from probattn.sites.site import INFER_KEY
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
                raise RuntimeError(
                    f"sampling: {type(module).__name__} is sampled already; leave the block first"
                )
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
        posterior = (msg["infer"] or {}).get(INFER_KEY)
        if isinstance(posterior, SitePosterior) and msg["value"] is None:
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
            given = [inputs, *(kwargs.get(name) for name in ("input_ids", "inputs_embeds")), *kwargs.values()]
            first = next((item for item in given if isinstance(item, Tensor) and item.dim() > 0), None)
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
