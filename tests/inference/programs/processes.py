"""Trains in two gloo processes and prints what each rank saw as JSON.

Usage: processes.py FOLDER
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed
from children import fork, wait
from tiny import tiny_data, tiny_driver, tiny_model
from torch import Tensor, nn

from probattn.files import durable
from probattn.inference.guide import AttentionGuide
from probattn.sites.noise import GlobalNoise

RANKS = 2


def digest(model: nn.Module) -> str:
    content = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(content).hexdigest()


class Heard(GlobalNoise):
    """Noise that keeps the first number of every draw."""

    def __init__(self) -> None:
        self.first: list[float] = []

    def uniform(self, like: Tensor) -> Tensor:
        noise = super().uniform(like)
        self.first.append(noise.flatten()[0].item())
        return noise


def without_noise(folder: Path) -> Any:
    """13 rows in steps of 8: the last step of an epoch has 5, 3 on one rank and 2 on the other."""
    model = tiny_model(attend=False)
    driver = tiny_driver(model, folder=folder, batch_size=2, accumulation=2, eval_every=1)
    result = driver.fit(tiny_data(13), tiny_data(5, seed=2), steps=6)
    return {"weights": digest(model), "loss": result.train["loss"], "validation": result.validation["loss"]}


def fewer_rows_than_ranks(folder: Path) -> Any:
    model = tiny_model(attend=False)
    tiny_driver(model, folder=folder, batch_size=1).fit(tiny_data(3), tiny_data(1, seed=2), steps=4)
    return {"weights": digest(model)}


def with_noise(folder: Path) -> Any:
    model = tiny_model(dropout=0.2)
    noise = Heard()
    guide = AttentionGuide(model, noise=noise)
    driver = tiny_driver(model, guide=guide, folder=folder, batch_size=2, checkpoint_every=2)
    driver.fit(tiny_data(12), steps=7)
    return {"weights": digest(model), "noise": noise.first}


def interrupted(folder: Path) -> Any:
    """The run above, cut by an error of every rank, then resumed."""
    model = tiny_model(dropout=0.2)
    calls = []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 6:
            raise KeyError("cut")

    model.register_forward_hook(fail)
    try:
        tiny_driver(model, folder=folder, batch_size=2, checkpoint_every=2).fit(tiny_data(12), steps=7)
    except KeyError:
        other = tiny_model(dropout=0.2)
        driver = tiny_driver(other, folder=folder, batch_size=2, checkpoint_every=2)
        driver.fit(tiny_data(12), steps=7, resume=True)
        return {"weights": digest(other)}
    return {"weights": "was not cut"}


def signalled(folder: Path) -> Any:
    """The run above, ended by a signal that the second rank alone gets, then resumed."""
    model = tiny_model(dropout=0.2)
    calls = []

    def send(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 4 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)

    model.register_forward_hook(send)
    try:
        tiny_driver(model, folder=folder, batch_size=2, checkpoint_every=7).fit(tiny_data(12), steps=7)
    except KeyboardInterrupt as error:
        other = tiny_model(dropout=0.2)
        driver = tiny_driver(other, folder=folder, batch_size=2, checkpoint_every=7)
        driver.fit(tiny_data(12), steps=7, resume=True)
        return {"said": str(error), "weights": digest(other)}
    return {"said": "was not interrupted"}


def one_rank_not_finite(folder: Path) -> Any:
    """A NaN that one rank alone meets."""
    data = tiny_data(8)
    data["x"][0] = math.nan
    try:
        tiny_driver(folder=folder, batch_size=1, shuffle=False).fit(data | {}, steps=8)
    except ArithmeticError as error:
        return {"error": str(error)}
    return {"error": None}


def full_disk(folder: Path) -> Any:
    """The first rank cannot write its second checkpoint."""
    write = durable.DigestingFile.write

    def limited(self: Any, data: Any) -> int:
        if "step-000004" in str(self.path):
            self.error = OSError(errno.ENOSPC, "No space left on device")
            raise self.error
        return write(self, data)

    try:
        with patch.object(durable.DigestingFile, "write", limited):
            tiny_driver(folder=folder, batch_size=2, checkpoint_every=2).fit(tiny_data(12), steps=6)
    except RuntimeError as error:
        return {"error": str(error), "left": sorted(path.name for path in (folder / "checkpoints").iterdir())}
    return {"error": None}


SCENES: list[Callable[[Path], Any]] = [
    without_noise,
    fewer_rows_than_ranks,
    with_noise,
    interrupted,
    signalled,
    one_rank_not_finite,
    full_disk,
]


def play(rank: int, folder: Path) -> None:
    found = {scene.__name__: scene(folder / scene.__name__) for scene in SCENES}
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def start(rank: int, port: int, folder: Path) -> int:
    def work() -> None:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        play(rank, folder)

    return fork(work)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    target = Path(sys.argv[1])
    number = free_port()
    children = [start(rank, number, target) for rank in range(RANKS)]
    sys.exit(max(wait(child) for child in children))
