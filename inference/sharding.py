"""Objectives whose parameters are sharded over processes by torch's ``fully_shard`` (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import distributed as dist
from torch import nn

from probattn.inference.configuration import WHOLE
from probattn.inference.elbo import AttentionELBOModule
from probattn.sites.particle_layers import particle_count


def shard(objective: AttentionELBOModule, **options: Any) -> AttentionELBOModule:
    """Shards the parameters of an objective over processes, in place, by ``torch.distributed.fsdp.fully_shard``.

    The parameters of each layer, an item of an outermost ``nn.ModuleList`` of the model, form a group, which is whole
    while this layer runs. All other parameters, among them those of the attention sites, form one group, which is whole
    while the objective is computed: the first call of an upward path reads the maps of all layers. Backpropagation
    averages gradients over the processes, as ``DistributedDataParallel`` does. Give each process its part of the batch
    and a seed of its own.

    Args:
        objective: result of ``AttentionELBO()(model, guide)``. Make the optimizer afterwards.
        options: ``mesh``, ``reshard_after_forward``, ``mp_policy`` and ``offload_policy`` of ``fully_shard``.

    Returns:
        The objective.

    Raises:
        ValueError: no process group was initialised, or the model has particle layers.
    """
    from torch.distributed.fsdp import fully_shard  # which imports for half a second

    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "shard: expected an initialised process group; call torch.distributed.init_process_group"
        )
    if particle_count(objective.model) is not None:
        raise ValueError("shard: particle layers cannot be sharded; train them in data-parallel processes")
    for layer in _layers(objective):
        called = list(_called(layer))
        if called:
            fully_shard(called, **options)
    return fully_shard(objective, **options)


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
