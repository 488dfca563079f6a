"""Layers of a network as particles: options, stacks of parameters, and passes in which a row runs for each particle."""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import layer_norm
from torch.utils._pytree import tree_map

from probattn.divergences import scale_gradient
from probattn.options import Count, NonNegative
from probattn.sites.method import Method, Parts, RecipeKeys
from probattn.sites.repulsive import ParticleOptions
from probattn.sites.trunk import ReachedError, RowsMovedError, Trunk

OWNER = "ParticleLayers"
MAIN_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values")
"""Names of inputs that have a row a datum."""
RECORD = "_probattn_particles"
"""Attribute of a network whose layers are particles."""
STACK = "probattn"
"""Submodule of a module whose parameters are particles."""


@dataclass(frozen=True)
class ParticleLayers(ParticleOptions, Method):
    r"""The last layers and the head of a network as particles of one posterior, with shared lower layers.

    The parameters of the selected layers and of all modules after the last layer (pooler, norm, task head) are stacked,
    ``[P, ...]``; particle i is the network with row i of them (TreeNets, Lee et al. 2015). A forward pass runs lower
    layers once, and the others for all particles in one batch: with l of L layers it costs about 1 + (P - 1) l / L
    passes of the network. The network returns the mean of the particles' probabilities, as an ensemble does;
    :func:`probattn.inference.posterior_predict` gives one draw per particle.

    The library's training loops give each particle the gradient of its loss, and shared parameters that of the mean
    loss. In a loop of your own the loss is the mean, so the gradients of the stacks are 1 / P of this. In training all
    particles share the lower layers' dropout masks, unless hidden states or attention weights are requested. The first
    particle starts with the network's task head, the others with new random heads. Only trainable parameters become
    particles: with LoRA each particle has its adapters over one frozen network. Parameters that several modules use
    (tied embeddings), parameters directly in a module with submodules, recurrent layers and batch norms stay shared.

    Args:
        sampler: "independent" training of each particle (a deep ensemble of the layers, Lakshminarayanan et al. 2017),
            "svgd" (Stein variational gradient descent, Liu and Wang 2016), "spos" (the same with Langevin noise) or
            "sgld" (noise alone).
        num_particles: number P of particles, >= 1.
        layers: layers of each stack that are particles; numbers count from 0, negative ones from the end; or the layers
            of the "encoder", of the "decoder" or with "cross" attention.
        parts: which modules of a layer become particles: "all", or only the "attention" projections of queries, keys
            and values; task heads do in both cases.
        space: what repels: the "parameters" of particles, as vectors, or their "predictions", the logits on the batch
            (D'Angelo and Fortuin 2021).
        new_heads: whether the task heads of all particles but the first, and the matrices A of LoRA (Hu et al. 2022),
            are initialised at random; False copies the network's.
        bootstrap: whether each particle weighs the training examples by separate Poisson numbers of mean 1 (Oza and
            Russell 2001), fixed by an example's content; for task heads with one label per example.
        spread: standard deviation of the initial noise on all particles but the first, divided by the root mean
            square of a parameter, >= 0.
        step_size: factor epsilon > 0 of the update direction of a particle; under "adam" and "adamw" it has no effect
            on "independent" and "svgd".
        repulsion: weight a >= 0 of the repulsion relative to the mean loss; 1 / N gives the posterior of N examples.
        kernel: kernel between particles; see the kernels of :class:`probattn.RepulsiveAttention`.
        bandwidth: bandwidth of the kernel, > 0; None for the kernel's rule.
        offset: constant added to the kernel "cosine", >= 0; None for 1.
        prior: prior of the parameters: "uniform", the only one for "predictions", or a normal prior's standard
            deviation > 0.
        temperature: temperature T > 0 of the noise of "spos" and "sgld"; 1 for the posterior, "datum" for T = N
            examples.
        langevin: weight w > 0 of the Langevin term in "spos" relative to the SVGD term.
        seed: seed of new task heads, of the initial noise and of the samplers' noise, >= 0.

    Raises:
        ValueError: an option out of its range; or ``space="predictions"`` with "spos", "sgld" or a normal prior.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> from probattn.inference import posterior_predict
        >>> from probattn.models import convert
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertForSequenceClassification(config), ParticleLayers(num_particles=4, layers="last")).eval()
        >>> inputs = {"input_ids": torch.ones(2, 5, dtype=torch.long)}
        >>> draws = posterior_predict(net, inputs)
        >>> draws.logits.shape
        torch.Size([4, 2, 2])
        >>> torch.allclose(net(**inputs).logits.softmax(-1), draws.mean_probabilities)
        True
    """

    kind: ClassVar[str] = "particles"
    section: ClassVar[str] = "particles"
    key: ClassVar[str] = "particles"
    recipe: ClassVar[RecipeKeys] = RecipeKeys(
        "The last layers as particles over shared lower layers; null for none.",
        order=("sampler", "num_particles", "layers"),
    )
    summarised: ClassVar[tuple[str, ...]] = ("sampler", "num_particles", "layers")

    # assignment: mypy takes fields as mutable, and lets none have more values than in the base; this class is frozen.
    sampler: Literal["independent", "svgd", "spos", "sgld"] = "independent"  # type: ignore[assignment]
    _: KW_ONLY
    num_particles: Count = 5
    layers: Parts = (-2, -1)
    parts: Literal["all", "attention"] = "all"
    space: Literal["parameters", "predictions"] = "parameters"
    new_heads: bool = True
    bootstrap: bool = False
    spread: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space == "predictions" and (self.sampler in ("spos", "sgld") or self.prior != "uniform"):
            got = f"prior={self.prior!r}" if self.prior != "uniform" else f"sampler={self.sampler!r}"
            raise ValueError(
                f"{OWNER}.space: 'predictions' take the sampler 'svgd' and a uniform prior, for noise and priors are "
                f"those of parameters, got {got}"
            )

    @property
    def couples(self) -> bool:
        """True if particles repel each other."""
        return self.sampler != "independent" and super().couples

    def summary(self) -> str:
        """Text with number and layers of the particles, and the sampler."""
        layers = self.layers if isinstance(self.layers, str) else " ".join(map(str, self.layers))
        return f"{self.num_particles} particles of layers {layers}, {self.sampler}"


@dataclass
class LossScale:
    """What the mean loss over particles is multiplied by before it is differentiated, as the backward pass tells."""

    factor: float | Tensor = 1.0

    def watch(self, loss: Tensor) -> None:
        """Notes the factor of a loss when its gradient comes."""
        if loss.requires_grad:
            loss.register_hook(lambda gradient: setattr(self, "factor", gradient.detach()))


@dataclass(frozen=True)
class ParticleRecord:
    """What of a network is particles: the method and the modules whose parameters are stacks, by name."""

    method: ParticleLayers
    modules: tuple[str, ...]
    scale: LossScale = field(default_factory=LossScale, compare=False, repr=False)

    @property
    def moved(self) -> bool:
        """Whether a driver makes directions of the gradients of the stacks."""
        return self.method.sampler != "independent" and self.method.space == "parameters"

    def stacks(self, net: nn.Module) -> dict[str, nn.Parameter]:
        """Stacks ``[P, ...]`` by the name of the network's own parameter."""
        return {
            f"{module}.{name}": parameter
            for module in self.modules
            for name, parameter in net.get_submodule(f"{module}.{STACK}").named_parameters()
        }


def particle_record(model: object) -> tuple[nn.Module, ParticleRecord] | None:
    """The network of a model whose layers are particles, with its record; None without one."""
    for module in model.modules() if isinstance(model, nn.Module) else ():
        record: ParticleRecord | None = vars(module).get(RECORD)
        if record is not None:
            return module, record
    return None


def particle_count(model: object) -> int | None:
    """Number of particles of a model whose layers are particles; None for another."""
    present = particle_record(model)
    return None if present is None else present[1].method.num_particles


class _Pass(NamedTuple):
    """A pass with the ``rows`` of all particles, or, without, one that ends before them; ``scale`` of gradients."""

    rows: int | None
    particles: int = 1
    scale: int = 1


_PASS: ContextVar[_Pass | None] = ContextVar("particles", default=None)


MULTIPLIER = 6364136223846793005
"""Of a linear congruential generator (Knuth), for numbers of the content of rows."""
POISSON = torch.tensor([0.36787944, 0.73575888, 0.91969860, 0.98101184, 0.99634015, 0.99940582, 0.99991676])
"""Distribution function of Poisson numbers of mean 1."""


def bootstrap_weights(method: ParticleLayers, batch: Mapping[str, Any], rows: int) -> Tensor:
    """Weights ``[P, B]`` of the rows of a batch for each particle, the same wherever a row is."""
    mask = batch.get("attention_mask")
    keys = torch.zeros(rows, dtype=torch.int64)
    for name, value in sorted(batch.items()):
        if name != "attention_mask" and _has_rows(value, rows):
            numbers = value.float().contiguous().view(torch.int32) if value.is_floating_point() else value
            numbers = numbers.long().reshape(rows, -1) + 1
            powers = torch.full_like(numbers[0], MULTIPLIER).cumprod(dim=0)
            if isinstance(mask, Tensor) and mask.shape == value.shape[:2]:
                # The first number that is no padding has the first power, on whichever side the padding is.
                valid = (
                    mask.long()
                    .unsqueeze(-1)
                    .expand(*mask.shape, numbers.shape[1] // mask.shape[1])
                    .flatten(1)
                )
                powers = powers[(valid.cumsum(dim=1) - 1).clamp_min(0)] * valid
            keys = keys.to(numbers.device) * MULTIPLIER + (numbers * powers).sum(dim=1)
    particles = torch.arange(1, method.num_particles + 1, device=keys.device).unsqueeze(1)
    mixed = (keys + particles * 0x1E3779B97F4A7C15) * MULTIPLIER + method.seed  # wraps around
    for _ in range(2):
        mixed = (mixed ^ (mixed >> 29 & 0x7FFFFFFFF)) * MULTIPLIER
    uniform = (mixed >> 11 & 0x1FFFFFFFFFFFFF).double() / 2**53
    return (uniform.unsqueeze(-1) >= POISSON.to(uniform)).sum(dim=-1).to(torch.float32)


def batch_rows(batch: Mapping[str, Any]) -> int:
    """Rows of a batch: those of its main input, or of its first tensor."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.dim()}
    return len(tensors[next((name for name in MAIN_INPUTS if name in tensors), next(iter(tensors)))])


def _has_rows(value: object, rows: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows


def pass_rows() -> int | None:
    """Rows of all particles of the present pass; None outside, and in one that ends before the particles."""
    state = _PASS.get()
    return None if state is None else state.rows


def runs_apart() -> bool:
    """Whether the rows of the present pass are those of all particles, one after another."""
    return _PASS.get() is not None


@contextmanager
def apart(rows: int | None, count: int = 1, *, scale: int = 1) -> Iterator[None]:
    """Passes with the rows of all particles, the first particle's first; for None they end before the particles."""
    token = _PASS.set(_Pass(rows, count, scale))
    try:
        yield
    finally:
        _PASS.reset(token)


def repeated_rows(batch: Mapping[str, Any], keys: Collection[str], count: int) -> dict[str, Any]:
    """The batch with the rows of its inputs ``keys`` ``count`` times, one whole batch after another."""
    return {n: v.repeat(count, *[1] * (v.dim() - 1)) if n in keys else v for n, v in batch.items()}


@contextmanager
def by_particle(
    model: Any, batch: Mapping[str, Any], *, scale: bool = False, share: bool = True
) -> Iterator[Mapping[str, Any]]:
    """The batch with its rows for each particle of the model, whose trunk runs once; itself for another model.

    With ``scale`` gradients of stacks are those of each particle's loss; without ``share`` the trunk runs with the rows
    of all particles, so that hooks see them.
    """
    count = particle_count(model)
    if count is None or runs_apart():
        yield batch
        return
    rows = batch_rows(batch)
    keys = {name for name, value in batch.items() if _has_rows(value, rows)}
    repeated = repeated_rows(batch, keys, count)
    trunk = Trunk(model, dict(batch), keys, rows, share_random=True)
    with ExitStack() as stack:
        if share:
            with apart(None):
                stack.enter_context(trunk.once(count))
            stack.enter_context(trunk.folded(count))
        stack.enter_context(apart(count * rows, count, scale=count if scale else 1))
        try:
            yield repeated
            stack.close()
        except RowsMovedError:
            raise ValueError(
                f"{OWNER}: expected shared layers that keep the rows of a batch in their order and apart, got a pass "
                "that moves rows or joins them between modules; do so before the network or after it"
            ) from None


class ParticleStack(nn.Module):
    """The parameters of one module that learn, ``[P, ...]``, by their names."""

    def __init__(self, module: nn.Module, count: int) -> None:
        super().__init__()
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                rows = parameter.detach().repeat(count, *[1] * parameter.dim())
                self.register_parameter(name, nn.Parameter(rows))

    def run(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's pass over rows of all particles, with the parameters of each."""
        state = _PASS.get()
        if state is None:
            raise RuntimeError(
                f"{OWNER}: {type(module).__name__}, a part of a network whose layers are particles, was called by "
                "itself; call the network, or take one particle of it: probattn.models.particle(net, 0)"
            )
        if state.rows is None:
            raise ReachedError
        if state.particles != (count := len(next(self.parameters()))):
            raise ValueError(
                f"{OWNER}: expected networks of {state.particles} particles in one pass, got one of {count}; convert "
                "all with the same number"
            )
        values = [*args, *kwargs.values()]
        if not all(
            len(value) % state.rows == 0 for value in values if isinstance(value, Tensor) and value.dim()
        ):
            sizes = [list(value.shape) for value in values if isinstance(value, Tensor)]
            raise RuntimeError(
                f"{OWNER}: expected inputs of a {type(module).__name__} with the {state.rows} rows of all particles, "
                f"got {sizes}; choose layers in which every module reads rows of the batch"
            )
        stacks: dict[str, Tensor] = dict(self.named_parameters())
        if state.scale > 1 and torch.is_grad_enabled():
            stacks = {name: scale_gradient(one, state.scale) for name, one in stacks.items()}
        quick = _form(type(module).forward)
        whole = stacks.keys() == {name for name, _ in module.named_parameters(recurse=False)}
        if quick is not None and whole and len(args) == 1 and not kwargs:
            return quick(module, args[0], stacks)
        return _vectorized(module, stacks, args, kwargs)


class ParticleForward:
    """Stands in place of the ``forward`` of a module whose parameters are particles."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The pass."""
        stack = self.module._modules[STACK]
        assert isinstance(stack, ParticleStack)
        return stack.run(self.module, args, kwargs)


def _linear(_: nn.Module, rows: Tensor, stacks: Mapping[str, Tensor], *, transposed: bool = True) -> Tensor:
    weight = stacks["weight"].mT if transposed else stacks["weight"]
    groups = rows.reshape(len(weight), -1, rows.shape[-1])
    bias = stacks.get("bias")
    result = groups @ weight if bias is None else torch.baddbmm(bias.unsqueeze(1), groups, weight)
    return result.view(*rows.shape[:-1], weight.shape[-1])


def _conv1d(module: nn.Module, rows: Tensor, stacks: Mapping[str, Tensor]) -> Tensor:
    return _linear(module, rows, stacks, transposed=False)


def _layer_norm(module: Any, rows: Tensor, stacks: Mapping[str, Tensor]) -> Tensor:
    normed = layer_norm(rows, module.normalized_shape, eps=module.eps)
    groups = normed.unflatten(0, (len(stacks["weight"]), -1))
    shape = [len(groups), *[1] * (normed.dim() - len(module.normalized_shape)), *module.normalized_shape]
    result = groups * stacks["weight"].view(shape)
    return (result + stacks["bias"].view(shape) if "bias" in stacks else result).flatten(0, 1)


def _form(forward: Any) -> Any:
    """A pass without vmap, whose bookkeeping costs more than small products; None for other modules."""
    loaded = sys.modules.get("transformers.pytorch_utils")  # by the network, if it has such a module
    conv1d = None if loaded is None else loaded.Conv1D.forward
    return {nn.Linear.forward: _linear, nn.LayerNorm.forward: _layer_norm, conv1d: _conv1d}.get(forward)


def _vectorized(
    module: nn.Module, stacks: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The module's own pass under vmap, of tensors whose rows are those of all particles."""
    count = len(next(iter(stacks.values())))

    def split(value: Any) -> Any:
        rows = isinstance(value, Tensor) and value.dim() > 0 and len(value) % count == 0
        return value.unflatten(0, (count, -1)) if rows else value

    values = [*map(split, args), *map(split, kwargs.values())]
    dims = [0 if new is not old else None for new, old in zip(values, [*args, *kwargs.values()], strict=True)]

    def one(parameters: dict[str, Tensor], *values: Any) -> Any:
        single = copy.copy(module)  # the module itself may run in another thread
        vars(single)["_parameters"] = {**module._parameters, **parameters}
        vars(single).pop("forward", None)
        positional, named = values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))
        return single.forward(*positional, **named)

    result = vmap(one, in_dims=(0, *dims), randomness="different")(dict(stacks), *values)
    return tree_map(lambda value: value.flatten(0, 1), result)
