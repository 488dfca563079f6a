"""Further processes that share the runs of a comparison."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from probattn.tasks.progress import note

BUSY = "another process is at it"
"""How a process ends that leaves the last runs to others."""
LAST = 5
"""Lines that are shown of what a failed process wrote."""
SECONDS = 60.0
"""How long a process may take for the end of its update, before it is killed."""

WORKER = "PROBATTN_WORKER"
"""The variable that tells a process that it is a worker, whose standard input ends with the process that began it."""


class Terminated(KeyboardInterrupt):
    """A SIGTERM ended a comparison."""

    number = signal.SIGTERM


@contextmanager
def workers(command: Sequence[str], number: int, device: torch.device, folder: Path) -> Iterator[None]:
    """Runs a command in further processes beside a block, with files ``worker-N.log``; an interruption ends them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"worker-{index}.log" for index in range(1, number + 1)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", WORKER: "1"}
    started: list[subprocess.Popen[bytes]] = []
    with _terminated():
        try:
            for index, file in enumerate(files, 1):
                with file.open("ab") as log:
                    started.append(
                        subprocess.Popen(  # a Ctrl-C of the terminal does not reach a session of its own
                            command,
                            env={**environment, **other_gpu(device, index)},
                            stdin=subprocess.PIPE,
                            stdout=log,
                            stderr=log,
                            start_new_session=True,
                        )
                    )
            yield
            for process in started:
                process.wait()
        finally:
            _end(started)
    for process, file in zip(started, files, strict=True):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        if process.returncode and not any(BUSY in line for line in lines[-1:]):
            note(f"a worker ended with status {process.returncode}; {file} has what it wrote, at the end:")
            for line in lines[-LAST:]:
                note(f"  {line}")


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends those that still run, after the update that they are at."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def end_with_parent() -> None:
    """Lets a worker end as by a SIGTERM when the process that began it, and with it its standard input, has ended."""

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    if os.environ.pop(WORKER, None):
        threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _terminated() -> Iterator[None]:
    """Lets a SIGTERM raise :class:`Terminated` where it would end the process at once; in the main thread alone."""

    def end(*_: object) -> None:
        raise Terminated

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def other_gpu(device: torch.device, number: int) -> dict[str, str]:
    """The environment in which a process sees one GPU, the ``number``-th after the one of this process, in turn."""
    if device.type != "cuda":
        return {}
    count, first = torch.cuda.device_count(), device.index or 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return {"CUDA_VISIBLE_DEVICES": names[(first + number) % count].strip()}
