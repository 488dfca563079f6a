"""Placement of particles on the layers of a network, and what the network answers with them."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch.nn.modules.batchnorm import _NormBase
from transformers import PreTrainedModel

from probattn.models.hosts.cache import cache_in
from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.discovery import FAILURES
from probattn.models.hosts.dry_run import UnknownInputError, dry_inputs, kept_generators, tensors, untouched
from probattn.models.hosts.methods import Host, Placement, place
from probattn.models.program import seeded
from probattn.particles import svgd_direction
from probattn.sites.handlers import takes_expectations
from probattn.sites.method import as_program
from probattn.sites.particle_layers import (
    MAIN_INPUTS,
    OWNER,
    RECORD,
    STACK,
    ParticleForward,
    ParticleLayers,
    ParticleRecord,
    ParticleStack,
    apart,
    by_particle,
    pass_rows,
    runs_apart,
)
from probattn.sites.repulsive import RepulsiveAttention
from probattn.sites.site import LatentSite

ROWS = 11
"""Rows of a short pass, which no other size of a network is likely to be a multiple of."""


@place.register
def _particles(method: ParticleLayers, calls: AttentionCalls, host: Host) -> Placement:
    """The modules whose parameters become stacks; layers without any that learn are refused."""
    for other in host.methods:
        if isinstance(other, RepulsiveAttention) or getattr(other, "looks_at", None) == "parameters":
            raise ValueError(
                f"{OWNER}: expected no method beside it that reads the weights of heads, which particles have several "
                f"of, got {other.summary()}; convert with one of them"
            )
    modules = particle_modules(host.net, calls, host.stacks, attention=method.parts == "attention")
    if not modules:
        raise ValueError(
            f"{OWNER}: expected layers with parameters that learn, got none in layers {method.layers!r}; set "
            "requires_grad, or choose other layers"
        )
    return Placement(attributes={RECORD: ParticleRecord(method, modules)}, changes=((attach, detach),))


def particle_modules(
    net: PreTrainedModel, calls: AttentionCalls, stacks: Mapping[str, object], *, attention: bool = False
) -> tuple[str, ...]:
    """Modules with parameters that learn, by name: in the layers of the calls, and what runs after the last layer."""
    order = _order(net)
    layers = tuple(f"{call.module if attention else layer_of(call)}." for call in calls)
    numbered = tuple(f"{stack}." for stack in stacks)
    names = [f"{name}." for name in order]
    last = max((index for index, name in enumerate(names) if name.startswith(numbered)), default=-1)
    owners = Counter(id(parameter) for _, parameter in net.named_parameters(remove_duplicate=False))
    modules = [
        name
        for index, (name, reads_rows) in enumerate(order.items())
        if (f"{name}.".startswith(layers) or (index > last and not f"{name}.".startswith(numbered)))
        and reads_rows
        and _can_be_stacked(net.get_submodule(name), owners)
    ]
    if modules and not _answers_alike(net, modules):
        modules = [name for name in modules if _answers_alike(net, [name])]  # others read its parameters
        if not modules or not _answers_alike(net, modules):
            raise ValueError(
                f"{OWNER}: {type(net).__name__} answers otherwise where the rows of its particles are in one batch, so "
                "that its layers cannot be particles; probattn.inference.ParticleEnsemble takes whole copies"
            )
    return tuple(modules)


def _answers_alike(net: PreTrainedModel, names: Sequence[str]) -> bool:
    """Whether a short pass stays the same with NaN for these modules' parameters and copies in their own passes."""
    answers: list[list[Tensor]] = []

    def run(network: PreTrainedModel, inputs: Mapping[str, Tensor]) -> None:
        plain = tensors(network(**inputs))
        doubled = {name: value.repeat(2, *[1] * (value.dim() - 1)) for name, value in inputs.items()}
        for name in names:
            module = net.get_submodule(name)
            stack = module._modules[STACK] = ParticleStack(module, 2)
            vars(module)["forward"] = ParticleForward(module)
            for learning in stack._parameters:
                cast(Any, module._parameters)[learning] = module.get_parameter(learning) * torch.nan
        answers.append(plain)
        with apart(2 * ROWS, 2), suppress(*FAILURES):
            answers.append(tensors(network(**doubled)))

    if not _short_pass(net, net, run) and not _short_pass(net, cast(PreTrainedModel, net.base_model), run):
        return True
    expected = [value.repeat(2, *[1] * (value.dim() - 1)) if value.dim() else value for value in answers[0]]
    return len(answers) > 1 and all(
        first.shape == second.shape and torch.allclose(first, second, rtol=1e-3, atol=1e-4)
        for first, second in zip(expected, answers[1], strict=True)
    )


def _can_be_stacked(module: nn.Module, owners: Mapping[int, int]) -> bool:
    """Whether a module has parameters that learn, all of them alone, no submodule, recurrence or running mean."""
    if any(module.children()) or isinstance(module, nn.RNNBase | nn.RNNCellBase | _NormBase):
        return False
    parameters = list(module.parameters(recurse=False))
    alone = all(owners[id(parameter)] == 1 for parameter in parameters)
    return alone and any(parameter.requires_grad for parameter in parameters)


def layer_of(call: AttentionCall) -> str:
    """The module that is the layer of a call; in a windowed network, whose lists are of stages, the block."""
    parts = call.module.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdigit()]
    if not numbers:
        return call.module.rpartition(".")[0]
    return ".".join(parts[: numbers[-1 if call.windowed else 0] + 1])


def _order(net: PreTrainedModel) -> dict[str, bool]:
    """Modules with parameters in the order of a short pass, and whether they read rows of the batch alone."""
    names = {id(module): name for name, module in net.named_modules() if module._parameters}
    order: dict[str, bool] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if id(module) in names:
            read = [item for item in (*args, *kwargs.values()) if isinstance(item, Tensor) and item.dim()]
            rows = bool(read) and all(len(item) % ROWS == 0 for item in read)
            order[names[id(module)]] = order.get(names[id(module)], True) and rows

    def run(network: PreTrainedModel, inputs: Mapping[str, Tensor]) -> None:
        order.clear()
        hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in net.modules()]
        try:
            network(**inputs)
        finally:
            for hook in hooks:
                hook.remove()

    base = cast(PreTrainedModel, net.base_model)
    if not _short_pass(net, net, run):
        _short_pass(net, base, run)
    # A head that did not run on the short input comes after what did.
    inside = tuple(f"{name}." for name, module in net.named_modules() if module is base and name)
    rest = [name for name in names.values() if name not in order and inside and not name.startswith(inside)]
    return order | dict.fromkeys(rest, True)


def _short_pass(
    net: PreTrainedModel,
    network: PreTrainedModel,
    run: Callable[[PreTrainedModel, Mapping[str, Tensor]], object],
) -> bool:
    """Calls a function with the network, or its part without the head, and a short input that it takes, if any."""
    with untouched(net):
        try:
            for inputs in dry_inputs(network):
                rows = torch.arange(ROWS, device=net.device) % 2
                try:
                    with kept_generators(net):
                        run(network, {name: value[rows] for name, value in inputs.items()})
                except FAILURES:
                    continue
                return True
        except UnknownInputError:
            pass
    return False


def attach(net: PreTrainedModel) -> None:
    """Makes stacks of the parameters of the modules that the network's record names."""
    record: ParticleRecord = vars(net)[RECORD]
    method = record.method
    generator = torch.Generator().manual_seed(method.seed)
    base = net.base_model_prefix if net.base_model is not net else None
    for name in record.modules:
        module = net.get_submodule(name)
        stack = ParticleStack(module, method.num_particles)
        if method.new_heads and ".lora_A." in f".{name}.":
            _draw_anew(
                module, stack, generator, lambda one: nn.init.kaiming_uniform_(one.weight, math.sqrt(5))
            )
        elif method.new_heads and base is not None and not name.startswith(f"{base}."):
            _draw_anew(module, stack, generator, net._init_weights)
        for rows in stack.parameters():
            _spread(rows, method.spread, generator)
        module.add_module(STACK, stack.train(module.training))
        for learning in stack._parameters:
            module.get_parameter(learning).requires_grad_(False)
        module.register_state_dict_pre_hook(keep_first)
        vars(module)["forward"] = ParticleForward(module)
    vars(net)["forward"] = ParticleNetwork(net, vars(net).get("forward"))


def detach(net: PreTrainedModel) -> None:
    """Undoes :func:`attach`: the network is its first particle."""
    record: ParticleRecord = vars(net)[RECORD]
    for name in record.modules:
        module = net.get_submodule(name)
        keep_first(module)
        for learning, rows in module.get_submodule(STACK).named_parameters():
            module.get_parameter(learning).requires_grad_(rows.requires_grad)
        delattr(module, STACK)
        del vars(module)["forward"]
        hooks = module._state_dict_pre_hooks
        for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) is keep_first]:
            del hooks[key]
    before = vars(net).pop("forward").before
    if before is not None:
        vars(net)["forward"] = before


@torch.no_grad()
def keep_first(module: nn.Module, *_: object) -> None:
    """Gives a module's own parameters, which a plain network is read from, the values of its first particle."""
    stack = module._modules.get(STACK)
    for name, rows in () if stack is None else stack.named_parameters():
        module.get_parameter(name).copy_(rows[0])


def _draw_anew(
    module: nn.Module, stack: ParticleStack, generator: torch.Generator, initialise: Callable[[Any], object]
) -> None:
    """Draws the rows after the first as such a module is initialised."""
    scratch = copy.deepcopy(module).cpu()
    for rows in range(1, len(next(stack.parameters()))):
        for parameter in scratch.parameters():
            vars(parameter).pop("_is_hf_initialized", None)
        vars(scratch).pop("_is_hf_initialized", None)
        seed = int(torch.randint(2**62, (), generator=generator, dtype=torch.int64))
        with seeded(seed), torch.no_grad():
            initialise(scratch)
            for name, values in stack.named_parameters():
                values[rows] = scratch.get_parameter(name).to(values)


@torch.no_grad()
def _spread(rows: Tensor, spread: float, generator: torch.Generator) -> None:
    """Adds noise to all rows but the first."""
    if spread and len(rows) > 1:
        size = rows[0].float().square().mean().sqrt()
        noise = torch.randn(rows[1:].shape, generator=generator).to(rows.device)
        rows[1:] += (spread * torch.where(size > 0, size, 1.0) * noise).to(rows.dtype)


class ParticleNetwork:
    """The ``forward`` of a network of particles: it answers with means of probabilities, of numbers and of losses."""

    def __init__(self, net: PreTrainedModel, before: Callable[..., Any] | None) -> None:
        self.net, self.before = net, before

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._forward)

    @property
    def _forward(self) -> Callable[..., Any]:
        return functools.partial(type(self.net).forward, self.net) if self.before is None else self.before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The pass."""
        forward, record = self._forward, cast(ParticleRecord, vars(self.net)[RECORD])
        self._check_checkpointing()
        if runs_apart():
            return self._apart(record, forward, args, kwargs)
        if record.method.couples and self.net.training and torch.is_grad_enabled():
            raise RuntimeError(
                f"{type(self.net).__name__}: training its particles, which repel each other, without a driver would "
                "leave the repulsion out unnoticed; train with probattn.inference.SVGDDriver, SVIDriver where "
                "predictions repel, or probattn.ProbabilisticTrainer (in place of transformers.Trainer), or call "
                ".eval() or torch.no_grad() to predict"
            )
        inputs = self._named(forward, args, kwargs)
        if not any(isinstance(value, Tensor) and value.dim() for value in inputs.values()):
            return forward(*args, **kwargs)  # which says what is missing
        self._check(inputs)
        if inputs.get("num_items_in_batch") is not None:  # labels that a loss is divided by
            inputs["num_items_in_batch"] = inputs["num_items_in_batch"] * record.method.num_particles
        as_tuple = inputs.pop("return_dict", None) is False
        model = _Named(self.net, functools.partial(forward, return_dict=True))
        looked_at = any(
            inputs.get(name, getattr(self.net.config, name, False))
            for name in ("output_attentions", "output_hidden_states")
        )
        with by_particle(model, inputs, share=not looked_at) as repeated:
            output = model(repeated)
        answer = mean_output(output, record.method.num_particles, _link(self.net))
        return answer.to_tuple() if as_tuple else answer

    def _apart(
        self,
        record: ParticleRecord,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The pass of rows of all particles."""
        rows, inputs = pass_rows(), self._named(forward, args, kwargs)
        read = next((inputs[name] for name in MAIN_INPUTS if isinstance(inputs.get(name), Tensor)), None)
        if rows is not None and read is not None and len(read) != rows:
            raise ValueError(
                f"{type(self.net).__name__}: expected the {rows} rows of all particles as the batch has them, got "
                f"{len(read)}; call the network once with the rows of the batch, in their order"
            )
        output = forward(*args, **kwargs)
        if record.method.space == "predictions" and record.method.couples and self.net.training:
            _repel(record, output)
        return output

    @staticmethod
    def _named(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name."""
        signature = inspect.signature(forward)
        bound = dict(signature.bind(*args, **kwargs).arguments)
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                bound |= bound.pop(name, {})
        return bound

    def _check_checkpointing(self) -> None:
        if self.net.training and any(
            getattr(part, "gradient_checkpointing", False) for part in self.net.modules()
        ):
            raise ValueError(
                f"{type(self.net).__name__}: expected no gradient checkpointing, under which a layer runs again "
                "outside the pass of its particles; call net.gradient_checkpointing_disable()"
            )

    def _check(self, inputs: dict[str, Any]) -> None:
        name = type(self.net).__name__
        if cache_in(inputs) is not None:
            raise ValueError(
                f"{name}: its particles keep no cache of keys and values; call it with use_cache=False, or generate "
                "with one of its particles, probattn.models.particle(net, 0)"
            )
        if inputs.get("encoder_outputs") is not None:
            raise ValueError(
                f"{name}: its particles take inputs of the encoder, not encoder_outputs; generate with one of them, "
                "probattn.models.particle(net, 0)"
            )
        if "use_cache" in inspect.signature(self._forward).parameters:
            inputs["use_cache"] = False
        latent = any(isinstance(module, LatentSite) for module in self.net.modules())
        if latent and not takes_expectations():
            raise RuntimeError(
                f"{name}: the draws of its particles' latent attention need a driver of this library, "
                "probattn.inference.SVIDriver, posterior_predict or probattn.ProbabilisticTrainer"
            )


class _Named(nn.Module):
    """A network as a model of a batch."""

    def __init__(self, net: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.net, self._run = net, call

    def forward(self, batch: Mapping[str, Any]) -> Any:
        """The network's output."""
        return self._run(**batch)


def _link(net: PreTrainedModel) -> str:
    """What makes probabilities of the network's logits; "identity" for a network without a head."""
    try:
        return str(getattr(as_program(net), "link", "softmax"))
    except TypeError:
        return "identity"


def mean_output(output: Any, count: int, link: str) -> Any:
    """The output of a network whose rows are those of all particles as the output of their mean."""
    links = {name: link if name.endswith("logits") else "identity" for name in output}
    return type(output)(**{name: _mean(value, count, links[name]) for name, value in output.items()})


def _mean(value: Any, count: int, link: str) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_mean(item, count, link) for item in value)
    if not isinstance(value, Tensor) or not value.dim() or not value.is_floating_point():
        return value
    rows = value.unflatten(0, (count, -1))
    if link == "identity":
        return rows.mean(dim=0)
    rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    if link == "softmax":
        return rows.log_softmax(dim=-1).logsumexp(dim=0) - math.log(count)
    return logsigmoid(rows).logsumexp(dim=0) - logsigmoid(-rows).logsumexp(dim=0)


def _repel(record: ParticleRecord, output: Any) -> None:
    """Makes directions of the gradients of the predictions ``[P * B, ...]`` (D'Angelo and Fortuin 2021)."""
    logits, method = getattr(output, "logits", None), record.method
    if logits is None:
        raise ValueError(
            f"{OWNER}.space: 'predictions' need a head whose output has logits, got {', '.join(output)}; take "
            "space='parameters'"
        )
    if not logits.requires_grad:
        return
    count = method.num_particles
    predictions = logits.detach().view(count, -1)
    kernel = method.build_kernel()

    def direct(gradient: Tensor) -> Tensor:
        factor = record.scale.factor / count  # of each particle's loss in what is differentiated
        direction = svgd_direction(predictions, gradient.view(count, -1) / factor, kernel, method.repulsion)
        return (-method.step_size * factor * direction).view_as(gradient).to(gradient)

    logits.register_hook(direct)
