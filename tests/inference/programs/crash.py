"""Kills a process that saves a checkpoint at every one of its file operations in turn; prints what was left as JSON.

Usage: crash.py FOLDER
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from children import fork, wait

from probattn.inference.checkpoint import CheckpointStore, verify_checkpoint

OPERATIONS = ("open", "os.", "shutil.")


def save(folder: Path, step: int) -> None:
    store = CheckpointStore(folder, keep_last=1)
    store.save(step, {"step": step}, {"model": {"w": torch.full((9,), float(step))}, "training": {"lr": 0.1}})


def save_and_die(folder: Path, step: int, moment: int) -> int:
    """Saves in a child that SIGKILL ends before its file operation number ``moment``; its exit status."""

    def work() -> None:
        count = itertools.count()

        def die(event: str, _: tuple[Any, ...]) -> None:
            if event.startswith(OPERATIONS) and event != "os.kill" and next(count) == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(die)
        save(folder, step)

    return wait(fork(work))


def main(root: Path) -> None:
    seen = []
    for moment in itertools.count():
        folder = root / f"{moment}"
        save(folder, 1)
        replaced = moment % 2 == 1  # every other time a checkpoint of that step is there already
        if replaced:
            CheckpointStore(folder, keep_last=2).save(2, {}, {"model": {"w": torch.zeros(3)}}, protect=(1,))
        status = save_and_die(folder, 2, moment // 2)
        store = CheckpointStore(folder)
        for step in store.steps():
            verify_checkpoint(store.path(step))
        store.remove_leftovers()
        left = sorted(entry.name for entry in folder.iterdir())
        seen.append({"status": status, "steps": store.steps(), "left": left})
        if status == 0 and replaced:
            break
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
