"""Optimisers and learning-rate schedulers: options, parameter groups, and what of them is clipped together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.options import Natural, NonNegative, Options, Positive, Share
from probattn.sites.alignment import AlignmentFactor
from probattn.sites.observation import ObservationScale
from probattn.sites.particle_layers import ParticleStack
from probattn.sites.site import LatentSite

ParameterGroup = dict[str, Any]
"""``name``, ``params``, ``lr`` and ``weight_decay``, as torch optimisers take them."""

OptimizerFactory = Callable[[list[ParameterGroup]], Optimizer]
SchedulerFactory = Callable[[Optimizer, int], LRScheduler]
"""Called with the optimiser and the number of steps of the run."""

FUSED = frozenset({"Adam", "AdamW"})
"""Optimisers whose update torch has as one kernel."""
FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})
"""Devices that have it."""
OTHER_UPDATES = frozenset({"fused", "foreach", "capturable", "differentiable"})
"""Arguments that choose another update, or that one."""


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """An optimiser of ``torch.optim`` over up to eight parameter groups.

    The groups are ``pretrained`` (the network's parameters), ``sites`` (parameters that the conversion added to
    attention calls), ``noise`` (the scale of the likelihood in regression) and ``alignment`` (the networks of alignment
    attention: discriminators, critics, navigators). Each has a second group, with ``.no_decay`` after its name, of the
    parameters without weight decay. Empty groups are left out.

    Args:
        name: class in ``torch.optim``.
        learning_rate: learning rate of the network's parameters, > 0.
        site_learning_rate: learning rate of the parameters of attention methods, > 0; None takes ``learning_rate``.
        alignment_learning_rate: learning rate of the networks of alignment attention, > 0; None takes
            ``learning_rate``, which is too small for them in fine-tuning, since they start untrained.
        weight_decay: weight decay of parameters with two or more dimensions, >= 0.
        decay_biases_and_norms: whether to decay parameters of fewer dimensions (biases, scales of norms) too.
        arguments: further arguments of the optimiser, such as ``{eps: 1e-6}``.
        noise_learning_rate: learning rate of the log scale of the likelihood in regression, > 0; None takes
            ``learning_rate``.

    Raises:
        ValueError: a number out of its range, or a name that ``torch.optim`` does not have.

    Example:
        >>> options = OptimizerOptions("SGD", learning_rate=0.1, weight_decay=0.01)
        >>> groups = options.groups(nn.Linear(2, 2))
        >>> [(group["name"], group["lr"], group["weight_decay"]) for group in groups]
        [('pretrained', 0.1, 0.01), ('pretrained.no_decay', 0.1, 0.0)]
    """

    name: str = "AdamW"
    learning_rate: Positive = 2e-5
    site_learning_rate: Positive | None = 1e-3
    alignment_learning_rate: Positive | None = 1e-3
    weight_decay: NonNegative = 0.01
    decay_biases_and_norms: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    noise_learning_rate: Positive | None = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        optimizer = getattr(torch.optim, self.name, None)
        exists = isinstance(optimizer, type) and issubclass(optimizer, Optimizer)
        if not exists or optimizer is Optimizer:
            raise ValueError(
                f"OptimizerOptions.name: torch.optim has no optimiser {self.name!r}; name one, or pass SVIDriver a "
                "function that makes yours from parameter groups"
            )

    def groups(self, model: nn.Module) -> list[ParameterGroup]:
        """Parameter groups of the model's trainable parameters, as torch optimisers take them.

        Raises:
            ValueError: no parameter is trainable.
        """
        groups = []
        for name, parameters in split_parameters(model, self.decay_biases_and_norms).items():
            decay = 0.0 if name.endswith(".no_decay") else self.weight_decay
            rate = self._learning_rate(name)
            groups.append({"name": name, "params": parameters, "lr": rate, "weight_decay": decay})
        return groups

    def build(self, groups: list[ParameterGroup], *, scaled: bool = False) -> Optimizer:
        """Builds the optimiser; Adam and AdamW use torch's fused update unless ``arguments`` choose another one.

        Args:
            groups: parameter groups.
            scaled: whether the loss is scaled for "fp16"; the update is then not fused: a fused one skips steps with an
                overflow without telling accelerate, which would still advance the schedule.
        """
        update = {"fused": True} if not scaled and self._can_be_fused(groups) else {}
        optimizer: Optimizer = getattr(torch.optim, self.name)(groups, **update, **self.arguments)
        return optimizer

    def _can_be_fused(self, groups: list[ParameterGroup]) -> bool:
        """Whether torch has one kernel for the update: of an Adam, over real numbers on these devices."""
        if self.name not in FUSED or not self.arguments.keys().isdisjoint(OTHER_UPDATES):
            return False
        parameters = [parameter for group in groups for parameter in group["params"]]
        return all(one.is_floating_point() and one.device.type in FUSED_DEVICES for one in parameters)

    def _learning_rate(self, name: str) -> float:
        rates = {"sites": self.site_learning_rate, "noise": self.noise_learning_rate}
        rates["alignment"] = self.alignment_learning_rate
        rate = rates.get(name.removesuffix(".no_decay"))
        return self.learning_rate if rate is None else rate


@dataclass(frozen=True)
class SchedulerOptions(Options):
    r"""A scheduler of ``transformers.get_scheduler``, stepped once per update.

    Args:
        name: "linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt" (Vaswani et al. 2017, section 5.3:
            after W steps of warm-up the rate falls as :math:`\sqrt{W / \text{step}}`), ... as transformers names them.
        warmup_steps: updates in which the learning rates rise, >= 0; None for the share ``warmup_fraction``.
        warmup_fraction: share of the updates in which the learning rates rise, in [0, 1], if ``warmup_steps`` is None.
        arguments: further arguments of the schedule (``min_lr`` of "cosine_with_min_lr", ...).

    Raises:
        ValueError: a number out of its range.

    Example:
        >>> SchedulerOptions("cosine", warmup_fraction=0.2).warmup(50)
        10
    """

    name: str = "linear"
    warmup_steps: Natural | None = None
    warmup_fraction: Share = 0.1
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def warmup(self, total_steps: int) -> int:
        """Number of warm-up updates in a run of ``total_steps`` updates."""
        return round(self.warmup_fraction * total_steps) if self.warmup_steps is None else self.warmup_steps

    def build(self, optimizer: Optimizer, total_steps: int) -> LRScheduler:
        """Builds the scheduler of a run of ``total_steps`` updates.

        Raises:
            ValueError: transformers has no scheduler of that name, or it needs further arguments.
        """
        from transformers import get_scheduler

        steps = {"num_warmup_steps": self.warmup(total_steps), "num_training_steps": total_steps}
        arguments = dict(self.arguments)
        return get_scheduler(self.name, optimizer, **steps, scheduler_specific_kwargs=arguments)


def split_parameters(model: nn.Module, decay_biases_and_norms: bool = False) -> dict[str, list[nn.Parameter]]:
    """Trainable parameters, each once, by group name, the undecayed apart; ``ValueError`` where there are none."""
    stacks = stacked_parameters(model)
    kinds = added_parameters(model)
    names = [name + twin for name in ("pretrained", *kinds) for twin in ("", ".no_decay")]
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in names}
    for parameter in _trainable(model):
        name = next((kind for kind, ids in kinds.items() if id(parameter) in ids), "pretrained")
        dimensions = parameter.ndim - (id(parameter) in stacks)  # those of one particle
        decayed = decay_biases_and_norms or dimensions > 1
        groups[name if decayed else f"{name}.no_decay"].append(parameter)
    groups = {name: parameters for name, parameters in groups.items() if parameters}
    if not groups:
        raise ValueError("the model has no trainable parameter: every one has requires_grad=False")
    return groups


def added_parameters(model: nn.Module) -> dict[str, set[int]]:
    """Identities of the parameters that a program adds: of ``sites``, of ``noise``, of the ``alignment`` networks."""
    kinds = {"sites": LatentSite, "noise": ObservationScale, "alignment": AlignmentFactor}
    return {name: _ids(model, kind) for name, kind in kinds.items()}


def split_alignment(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters without the networks of alignment factors, and theirs, which learn by another loss."""
    ids = _ids(model, AlignmentFactor)
    parameters = list(_trainable(model))
    others = [parameter for parameter in parameters if id(parameter) not in ids]
    return others, [parameter for parameter in parameters if id(parameter) in ids]


def stacked_parameters(model: nn.Module) -> set[int]:
    """Identities of the parameters that hold a row for each particle, of an ensemble or of layers."""
    ensembles = (module for module in model.modules() if isinstance(module, ParticleEnsemble))
    stacks = [stack for ensemble in ensembles for stack in ensemble.stacked_parameters().values()]
    return {*map(id, stacks), *_ids(model, ParticleStack)}


def _ids(model: nn.Module, *kinds: type[nn.Module]) -> set[int]:
    modules = (module for module in model.modules() if isinstance(module, kinds))
    return {id(parameter) for module in modules for parameter in module.parameters()}


def _trainable(model: nn.Module) -> Iterator[nn.Parameter]:
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


def build_optimizer(
    optimizer: OptimizerOptions | OptimizerFactory, model: nn.Module, *, scaled: bool = False
) -> Optimizer:
    """The optimiser of a run, with a scaled loss or not; a factory gets the groups of the default options."""
    if isinstance(optimizer, OptimizerOptions):
        return optimizer.build(optimizer.groups(model), scaled=scaled)
    made = optimizer(OptimizerOptions().groups(model))
    if not isinstance(made, Optimizer):
        kind = type(made).__name__
        raise TypeError(f"optimizer: expected the function to return a torch optimiser, got {kind}")
    return made


def learning_rates(optimizer: Optimizer) -> dict[str, float]:
    """Current learning rate of each group, by its name or its number."""
    groups = enumerate(optimizer.param_groups)
    return {str(group.get("name", number)): float(group["lr"]) for number, group in groups}


def unsharded(value: Any) -> Any:
    """The whole of a tensor that is sharded over processes, all of which call this; anything else as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


class Clipped:
    """Parameters that are clipped by one joint norm, or, as stacks ``[P, ...]``, by one for each particle."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, stacked: bool) -> None:
        self._parameters, self._stacked, self._norms = parameters, stacked, torch.zeros(())

    def measure(self) -> Tensor:
        """Measures the gradients; the norm, over particles the root of the mean of its square."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if not self._stacked or not gradients:
            self._norms = get_total_norm(gradients)  # of sharded gradients sharded too, as they are shortened
            return unsharded(self._norms)
        norms = [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in gradients]
        self._norms = torch.linalg.vector_norm(torch.stack(norms), dim=0)  # [P]
        return self._norms.square().mean().sqrt()

    @torch.no_grad()
    def clip(self, limit: float) -> None:
        """Shortens gradients whose norm, as measured, is above ``limit``."""
        if not self._stacked:
            clip_grads_with_norm_(self._parameters, limit, self._norms)
            return
        factors = (limit / (self._norms + 1e-6)).clamp(max=1.0)  # as torch has it
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factors.to(parameter.grad).view(-1, *[1] * (parameter.dim() - 1)))


class Clipping:
    """Groups of parameters that are clipped together: alignment's networks, and all others; particles one by one."""

    def __init__(self, module: nn.Module) -> None:
        stacks = stacked_parameters(module)
        self._groups: list[list[Clipped]] = []
        for parameters in split_alignment(module):
            subsets = {s: [p for p in parameters if (id(p) in stacks) == s] for s in (False, True)}
            self._groups.append([Clipped(subset, stacked=s) for s, subset in subsets.items() if subset])

    def measure(self) -> tuple[Tensor, Tensor]:
        """Norms of all gradients but alignment's networks', and of theirs."""
        main, alignment = map(_joint, self._groups)
        return main, alignment

    def clip(self, limit: float) -> None:
        """Shortens what is longer than ``limit``, as last measured."""
        for group in chain.from_iterable(self._groups):
            group.clip(limit)


def _joint(groups: Sequence[Clipped]) -> Tensor:
    norms = [group.measure() for group in groups]
    if len(norms) == 1:
        return norms[0]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
