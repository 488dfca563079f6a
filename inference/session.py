"""State that a run restores when it ends: accelerate's, random generators, modes and Pyro's parameters."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyro
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.tracking import GeneralTracker
from accelerate.utils import DistributedDataParallelKwargs, DistributedType, GradientAccumulationPlugin
from pyro.util import get_rng_state, set_rng_state
from torch import Tensor, nn

from probattn.inference.checkpoint import CheckpointError
from probattn.sites.handlers import SHARED_STATE, SharedState
from probattn.sites.noise import seed_integers

Precision = Literal["no", "bf16", "fp16"]

_UNSUPPORTED = [DistributedType(name) for name in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA")]

_SESSION = SharedState(
    busy="expected one training run at a time in a process, got a second one in another thread: both would draw from "
    "torch's one generator; wait for the first, or train in a process of its own"
)
"""Held while accelerate's state is that of a run; the seeded generators are the process's too."""


@contextmanager
def accelerator_session(
    *,
    precision: Precision,
    cpu: bool = False,
    trackers: Sequence[str | GeneralTracker] = (),
    folder: Path | None = None,
    find_unused_parameters: bool = False,
) -> Iterator[Accelerator]:
    """An accelerator of its own: accelerate's process-wide settings of others are put aside and put back."""
    with _SESSION.changed() as changes:
        changes.enter_context(_fresh_accelerate_state())
        accelerator = Accelerator(
            mixed_precision=precision,
            cpu=cpu,
            log_with=list(trackers) or None,
            project_dir=folder,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1, sync_with_dataloader=False),
            dynamo_backend="no",  # a compiled graph cannot hold pyro.sample
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=find_unused_parameters)],
        )
        if accelerator.distributed_type in _UNSUPPORTED:
            raise ValueError(
                f"expected one process or data-parallel ones, got {accelerator.distributed_type.value}; launch with "
                "accelerate's or torchrun's plain multi-process mode (shard=True shards parameters)"
            )
        try:
            yield accelerator
        finally:
            for tracker in accelerator.trackers:
                tracker.finish()  # not end_training(), which would also end the caller's process group


@contextmanager
def _fresh_accelerate_state() -> Iterator[None]:
    singletons = (AcceleratorState, GradientState, PartialState)
    before = [dict(singleton._shared_state) for singleton in singletons]
    for singleton in singletons:
        singleton._shared_state.clear()
    try:
        yield
    finally:
        for singleton, state in zip(singletons, before, strict=True):
            singleton._shared_state.clear()
            singleton._shared_state.update(state)


RandomState = dict[str, Any]
"""States of Python's, numpy's and torch's generators in plain values and tensors."""


def seed_generators(*seed: int) -> None:
    """Seeds Python, numpy and torch (every device) from integers >= 0; as many others give unrelated streams."""
    words = np.random.SeedSequence(seed_integers(seed)).generate_state(3)
    python, numpy, torch_seed = map(int, words)
    pyro.set_rng_seed(numpy)  # seeds all three; two get words of their own, or all would start from one
    random.seed(python)
    torch.manual_seed(torch_seed)


def derived_seed(*entropy: int) -> int:
    """A seed of 63 bits from integers >= 0, unrelated to others of as many; zeros at the end add nothing."""
    state = np.random.SeedSequence(seed_integers(entropy)).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def generator_states(devices: Iterable[torch.device]) -> list[Tensor]:
    """States of torch's generators of the CPU and of devices: a pass that changes them has drawn random numbers."""
    states = [torch.get_rng_state()]
    for device in sorted({device for device in devices if device.type != "cpu"}, key=str):
        which = () if device.type == "mps" else (device,)  # there is one
        states.append(torch.get_device_module(device).get_rng_state(*which))
    return states


def capture_random_state(device: torch.device) -> RandomState:
    """States of all generators a training step may draw from; ``device`` is the one it runs on."""
    captured = get_rng_state()
    version, words, gauss = captured["random"]
    name, key, position, has_gauss, cached = captured["numpy"]
    state: RandomState = {"python": {"version": version, "words": list(words), "gauss": gauss}}
    position, has_gauss, cached = int(position), int(has_gauss), float(cached)
    state["numpy"] = {"name": str(name), "key": torch.from_numpy(np.asarray(key, dtype=np.int64))}
    state["numpy"] |= {"position": position, "has_gauss": has_gauss, "gauss": cached}
    state["torch"] = captured["torch"]
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def restore_random_state(state: RandomState, device: torch.device) -> None:
    """Puts back what :func:`capture_random_state` returned on the same kind of device."""
    if device.type != "cpu" and "device" not in state:
        raise CheckpointError(
            f"random states: expected the state of a {device.type} generator, got one saved on a CPU, where the run "
            "goes on (CUDA_VISIBLE_DEVICES= hides a GPU); on another device train anew"
        )
    python, numpy = state["python"], state["numpy"]
    key: Tensor = numpy["key"]
    words = key.numpy().astype(np.uint32)
    of_python = (python["version"], tuple(python["words"]), python["gauss"])
    of_numpy = (numpy["name"], words, numpy["position"], numpy["has_gauss"], numpy["gauss"])
    set_rng_state({"random": of_python, "numpy": of_numpy, "torch": state["torch"]})
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"])


@contextmanager
def preserved_random_state(device: torch.device) -> Iterator[None]:
    """Restores every generator after the block."""
    state = capture_random_state(device)
    try:
        yield
    finally:
        restore_random_state(state, device)


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Evaluation mode without gradients, one thread at a time; every module's mode and Pyro's store are put back."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    with SHARED_STATE.changed() as changes:
        training = [module for module in modules if module.training]
        changes.callback(_set_training, training, mode=True)
        _set_training(training, mode=False)
        store = pyro.get_param_store()
        changes.enter_context(store.scope(store.get_state()))
        with torch.no_grad():
            yield


def _set_training(modules: Iterable[nn.Module], *, mode: bool) -> None:
    for module in modules:
        module.training = mode


@contextmanager
def frozen_parameters() -> Iterator[None]:
    """Lets parameters be frozen without Pyro's warning, one a parameter, that they are not in its store."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not registered in the param store because requires_grad")
        yield
