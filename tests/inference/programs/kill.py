"""Kills a training process at random moments, resumes it until it ends, and prints what was seen as JSON.

Usage: kill.py FOLDER KILLS SEED STEPS
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path

from children import fork, wait
from tiny import run_that_can_be_killed, tiny_data, tiny_driver

from probattn.inference.checkpoint import verify_checkpoint
from probattn.inference.records import read_records


def check_files(folder: Path) -> None:
    """Whatever has a checkpoint's name is complete; every line of the records but an unfinished last one is JSON."""
    for checkpoint in (folder / "checkpoints").glob("step-*"):
        verify_checkpoint(checkpoint)
    read_records(folder / "metrics.jsonl")


def main(folder: Path, kills: int, seed: int, steps: int) -> None:
    draw = random.Random(seed)
    tiny_driver().fit(tiny_data(), steps=1)  # what torch imports on first use, children need not
    begun = time.monotonic()
    if wait(fork(partial(run_that_can_be_killed, folder / "whole", steps))) != 0:
        raise SystemExit("the uninterrupted run failed")
    duration = time.monotonic() - begun
    run, killed, resumed_from = 0, 0, []
    while killed < kills:
        child = fork(partial(run_that_can_be_killed, folder / f"run-{run}", steps))
        time.sleep(draw.uniform(0, duration))
        os.kill(child, signal.SIGKILL)
        status = wait(child)
        if status not in (0, -signal.SIGKILL):
            raise SystemExit(f"a resumed run failed with status {status}")
        check_files(folder / f"run-{run}")
        found = (folder / f"run-{run}" / "checkpoints").glob("step-*")
        newest = max((path.name for path in found), default="")
        if newest == f"step-{steps:06d}":  # it was faster
            run += 1
        else:
            killed += 1
            resumed_from.append(newest)
    if wait(fork(partial(run_that_can_be_killed, folder / f"run-{run}", steps))) != 0:
        raise SystemExit("the last resumed run failed")
    print(json.dumps({"runs": run + 1, "killed": killed, "resumed_from": resumed_from}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
