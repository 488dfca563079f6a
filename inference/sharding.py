"""Objectives whose parameters are sharded over processes by torch's ``fully_shard`` (FSDP2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from probattn.inference.configuration import WHOLE
from probattn.inference.elbo import AttentionELBOModule
from probattn.inference.optimizers import unsharded
from probattn.sites.particle_layers import particle_count


def shard(objective: AttentionELBOModule, **options: Any) -> AttentionELBOModule:
    """Shards the parameters of an objective over processes, in place, by ``torch.distributed.fsdp.fully_shard``.

    The parameters of each layer, an item of an outermost ``nn.ModuleList`` of the model, form a group, which is whole
    while this layer runs. All other parameters, among them those of the attention sites and those that layers share,
    form one group, which is whole while the objective is computed: the first call of an upward path reads the maps of
    all layers. Backpropagation averages gradients over the processes, as ``DistributedDataParallel`` does. Give each
    process its part of the batch and a seed of its own. All processes must run the same modules in the same order.

    Args:
        objective: result of ``AttentionELBO()(model, guide)``. Make the optimizer afterwards.
        options: ``mesh``, ``reshard_after_forward``, ``mp_policy`` and ``offload_policy`` of ``fully_shard``.

    Returns:
        The objective.

    Raises:
        ValueError: no process group was initialised, or the model has particle layers, a parameter without a dimension
            (as with ``prior_strength="learned"``), or a group with trainable parameters of several types.
    """
    from torch.distributed.fsdp import fully_shard  # which imports for half a second

    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "shard: expected an initialised process group; call torch.distributed.init_process_group"
        )
    if particle_count(objective.model) is not None:
        raise ValueError("shard: particle layers cannot be sharded; train them in data-parallel processes")
    scalars = [name for name, parameter in objective.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise ValueError(
            f"shard: {scalars[0]} has no dimension along which it could be sharded; train in data-parallel processes, "
            "or, if it is a prior's log_strength, set prior_strength to a number"
        )
    uses = _uses(objective)
    groups = []
    for layer in _layers(objective):
        within = _uses(layer)
        alone = {key for key, count in within.items() if count == uses[key]}
        groups.append([m for m in _called(layer) if all(id(p) in alone for p in m.parameters())])
    _refuse_mixed_types(objective, groups)
    for group in filter(None, groups):
        fully_shard(group, **options)
    return fully_shard(objective, **options)


def _uses(module: nn.Module) -> Counter[int]:
    """How often each parameter is registered in a module."""
    return Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))


def _refuse_mixed_types(objective: nn.Module, groups: Sequence[Sequence[nn.Module]]) -> None:
    """Refuses trainable parameters of several types in one group, at which torch fails in the first pass."""
    names = {
        id(parameter): name for name, parameter in objective.named_parameters() if parameter.requires_grad
    }
    for group in (*groups, [objective]):
        types: dict[torch.dtype, str] = {}
        for parameter in chain.from_iterable(module.parameters() for module in group):
            if name := names.pop(id(parameter), ""):
                types.setdefault(parameter.dtype, name)
        if len(types) > 1:
            listed = ", ".join(f"{name} ({str(kind).removeprefix('torch.')})" for kind, name in types.items())
            raise ValueError(
                f"shard: expected trainable parameters of one type, got {listed}; load the network in float32 and "
                "train with precision 'bf16'"
            )


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The items of the outermost lists of modules."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _layers(child)


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules with parameters of their own and without a site; parents of a site stay with the rest."""
    if isinstance(module, WHOLE):
        return
    hosts = any(isinstance(inner, WHOLE) for inner in module.modules())
    if not hosts and any(True for _ in module.parameters(recurse=False)):
        yield module
        return
    for child in module.children():
        yield from _called(child)


class TrainedObjective:
    """What a run trains, and the whole objective of its model: here the same. All processes call each method."""

    def __init__(self, objective: Any) -> None:
        self.objective = self.whole = objective

    def prepare(self, accelerator: Accelerator, module: nn.Module) -> Any:
        """Prepares the module around the trained objective for precision and processes."""
        return accelerator.prepare(module)

    def adopt(self, optimizer: Optimizer) -> None:
        """Makes a new optimizer of the whole parameters one of the trained parameters."""

    def pull(self) -> None:
        """Brings the whole objective up to date."""

    def push(self) -> None:
        """Brings the trained objective up to date with the whole one."""

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Has the whole objective up to date and on the device while the block runs."""
        yield

    @contextmanager
    def saving(self, optimizer: Any) -> Iterator[None]:
        """Lets the first process alone save the whole objective and the state of the optimizer in the block."""
        yield

    def release(self) -> None:
        """Leaves the whole objective on the device."""


class ShardedCopy(TrainedObjective):
    """Trains a sharded copy with the first process's parameters, while the whole objective waits on the CPU."""

    def __init__(self, whole: AttentionELBOModule, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # as above

        super().__init__(whole.to("cpu"))
        self._device, self._undo = device, ExitStack()
        for tensor in _tensors(whole):
            _set(tensor, self._of_first(tensor))
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        try:  # one group after the other moves to the device
            self.objective = shard(deepcopy(whole), mesh=mesh)
        except Exception:
            self.release()
            raise

    def prepare(self, accelerator: Accelerator, module: nn.Module) -> Any:
        """See :class:`TrainedObjective`; gradients are averaged by the shards themselves."""
        return accelerator.prepare_model(module, device_placement=False, evaluation_mode=True)

    def adopt(self, optimizer: Optimizer) -> None:
        """See :class:`TrainedObjective`; it saves a whole state in the first process, and loads one."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # within that of accelerate
        pairs = zip(self.whole.parameters(), self.objective.parameters(), strict=True)
        trained = {id(whole): parameter for whole, parameter in pairs}
        before = [group["params"] for group in optimizer.param_groups]
        after = [[trained.get(id(parameter), parameter) for parameter in members] for members in before]
        _set_parameters(optimizer, after)
        self._undo.callback(_set_parameters, optimizer, before)
        self._undo.callback(optimizer.register_state_dict_post_hook(_whole_state).remove)
        self._undo.callback(optimizer.register_load_state_dict_pre_hook(_sharded_state).remove)

    def pull(self) -> None:
        """See :class:`TrainedObjective`; the weight of the KL too. All buffers become those of the first process."""
        for buffer in self.objective.buffers():
            _set(buffer, self._of_first(buffer))
        for whole, trained in zip(_tensors(self.whole), _tensors(self.objective), strict=True):
            _set(whole, unsharded(trained.detach()))
        self.whole.guide.kl_weight = self.objective.guide.kl_weight

    def _of_first(self, tensor: Tensor) -> Tensor:
        """A tensor's values in the first process, on the device."""
        moved = tensor.detach().to(self._device).contiguous().clone()
        dist.broadcast(moved, 0)
        return moved

    @torch.no_grad()
    def push(self) -> None:
        """See :class:`TrainedObjective`."""
        for whole, trained in zip(self.whole.parameters(), self.objective.parameters(), strict=True):
            trained.copy_(_sharded_as(trained, whole))
        for whole, trained in zip(self.whole.buffers(), self.objective.buffers(), strict=True):
            _set(trained, whole)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """See :class:`TrainedObjective`."""
        self.pull()
        try:
            self.whole.to(self._device)
            yield
        finally:
            self.whole.to("cpu")

    @contextmanager
    def saving(self, optimizer: Any) -> Iterator[None]:
        """See :class:`TrainedObjective`."""
        self.pull()
        state = optimizer.state_dict()
        vars(optimizer)["state_dict"] = lambda: state
        try:
            yield
        finally:
            del vars(optimizer)["state_dict"]

    def release(self) -> None:
        """See :class:`TrainedObjective`; the optimizer has the whole parameters again, and its part of the state."""
        self._undo.close()
        self.whole.to(self._device)


def trained_objective(
    objective: Any, accelerator: Accelerator, owner: str, *, sharded: bool, refused: Mapping[str, bool]
) -> TrainedObjective:
    """The objective as a run trains it; raises ``ValueError`` where it is to be sharded with something refused."""
    if not sharded:
        return TrainedObjective(objective)
    guide, model = getattr(objective, "guide", None), getattr(objective, "model", None)
    refused = {"a guide with parameters": isinstance(guide, nn.Module), **refused}
    refused["particle layers"] = particle_count(model) is not None
    for name, present in refused.items():
        if present:
            raise ValueError(f"{owner}: sharded parameters do not go with {name}; leave out one of them")
    if accelerator.num_processes == 1:
        return TrainedObjective(objective)
    return ShardedCopy(objective, accelerator.device)


def _set_parameters(optimizer: Optimizer, groups: Sequence[list[Tensor]]) -> None:
    """Gives an optimizer other parameters, group by group, with the states of those before."""
    for group, parameters in zip(optimizer.param_groups, groups, strict=True):
        for before, after in zip(group["params"], parameters, strict=True):
            if before in optimizer.state:
                optimizer.state[after] = _state_as(after, optimizer.state.pop(before))
        group["params"] = parameters


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


def _sharded_as(like: Any, value: Tensor) -> Tensor:
    """A whole tensor in the way in which another is sharded, where it is."""
    from torch.distributed.tensor import DTensor, distribute_tensor  # which imports for half a second

    if not isinstance(like, DTensor) or isinstance(value, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _state_as(like: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The state of a parameter in an optimizer, sharded as the parameter is."""
    return {n: _sharded_as(like, value) if isinstance(value, Tensor) else value for n, value in state.items()}


@torch.no_grad()
def _set(tensor: Tensor, value: Tensor) -> None:
    """Copies values, but for those that are there: an expanded buffer cannot be written to."""
    value = value.to(tensor.device)
    if not torch.equal(tensor, value):
        tensor.copy_(value)


def _whole_state(_: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """One whole tensor after the other goes to the CPU, in the first process; the others keep their parts."""

    def whole(value: Any) -> Any:
        gathered = unsharded(value)
        return gathered.cpu() if gathered is not value and dist.get_rank() == 0 else value

    return {**state, "state": tree_map(whole, state["state"])}


def _sharded_state(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    parameters = list(chain.from_iterable(group["params"] for group in optimizer.param_groups))
    states = {index: _state_as(parameters[index], values) for index, values in state["state"].items()}
    return state | {"state": states}
