"""Random generators of a process: seeding per rank, saving, restoring."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyro
import torch
from pyro.util import get_rng_state, set_rng_state
from torch import Tensor

RandomState = dict[str, Any]
"""States of Python's, numpy's and torch's generators in plain values and tensors."""


def seed_generators(*seed: int) -> None:
    """Seeds Python, numpy and torch (every device) from a tuple of integers >= 0.

    Different tuples give unrelated streams: (seed, rank) serves a process of a run.

    Example:
        >>> seed_generators(0, 1)
        >>> first = torch.rand(())
        >>> seed_generators(0, 1)
        >>> bool(first == torch.rand(()))
        True
    """
    python, numpy, torch_seed = (int(word) for word in np.random.SeedSequence(seed).generate_state(3))
    pyro.set_rng_seed(numpy)  # seeds all three; two get words of their own, or all would start from one
    random.seed(python)
    torch.manual_seed(torch_seed)


def capture_random_state(device: torch.device) -> RandomState:
    """States of all generators a training step may draw from; ``device`` is the one it runs on."""
    found = get_rng_state()
    version, words, gauss = found["random"]
    name, key, position, has_gauss, cached = found["numpy"]
    state: RandomState = {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": {
            "name": str(name),
            "key": torch.from_numpy(np.asarray(key, dtype=np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(cached),
        },
        "torch": found["torch"],
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def restore_random_state(state: RandomState, device: torch.device) -> None:
    """Puts back what :func:`capture_random_state` returned.

    Raises:
        ValueError: the state lacks ``device``'s generator: it was saved on another kind of device.
    """
    if device.type != "cpu" and "device" not in state:
        raise ValueError(
            f"random states: expected the state of a {device.type} generator, got one saved on a CPU"
        )
    python, numpy = state["python"], state["numpy"]
    key: Tensor = numpy["key"]
    words = key.numpy().astype(np.uint32)
    set_rng_state(
        {
            "random": (python["version"], tuple(python["words"]), python["gauss"]),
            "numpy": (numpy["name"], words, numpy["position"], numpy["has_gauss"], numpy["gauss"]),
            "torch": state["torch"],
        }
    )
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"])


@contextmanager
def preserved_random_state(device: torch.device) -> Iterator[None]:
    """Leaves every generator as it was found, whatever is drawn inside."""
    state = capture_random_state(device)
    try:
        yield
    finally:
        restore_random_state(state, device)
