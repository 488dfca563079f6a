"""Damaged recipes, networks, runs, policies and files: none may end in a traceback, hang, or be misread in silence.

python tests/fuzz/fuzz.py                                  the full count
python tests/fuzz/fuzz.py --count runs=100 --seed 7        an area, from another seed
python tests/fuzz/fuzz.py --keep failures                  where failing inputs are kept, one folder each
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from areas import Area, LostError, Networks, Recipes, Results, Runs
from predictions import FilesOfTexts, Policies
from transformers.utils.logging import disable_progress_bar

AREAS: dict[str, Callable[[Path], Area]] = {
    area.name: area for area in (Recipes, Networks, Runs, Results, Policies, FilesOfTexts)
}
FULL = {"recipes": 5000, "networks": 1500, "runs": 1000, "results": 1000, "policies": 1000, "files": 1000}


class Hang(BaseException):
    """An input took longer than it may."""


@dataclass
class Tally:
    """What came of the inputs of an area; ``lost`` are the inputs by kind of failure, ``slowest`` seconds."""

    tried: int = 0
    accepted: int = 0
    refused: int = 0
    lost: dict[str, list[str]] = field(default_factory=dict)
    slowest: float = 0.0

    @property
    def failures(self) -> int:
        """Inputs that were lost."""
        return sum(map(len, self.lost.values()))


def fuzz(area: Area, count: int, seed: int, *, limit: float, keep: Path | None = None) -> Tally:
    """Tries ``count`` inputs, each with a seed of its own and ``limit`` seconds; failing ones go into ``keep``."""
    tally = Tally()
    for number in range(seed, seed + count):
        with tempfile.TemporaryDirectory() as scratch:
            place, said = Path(scratch), ""
            started = time.monotonic()
            tally.tried += 1
            try:
                with _limited(limit):
                    accepted = area.attempt(random.Random(f"{area.name} {number}"), place)
            except LostError as error:
                said, trace = error.kind, error.details
            except Hang:
                said, trace = "hang", traceback.format_exc()
            else:
                tally.accepted += accepted
                tally.refused += not accepted
            tally.slowest = max(tally.slowest, time.monotonic() - started)
            if said:
                tally.lost.setdefault(said, []).append(f"input {number}: {trace.strip().splitlines()[0]}")
                if keep is not None and len(tally.lost[said]) == 1:
                    target = keep / f"{area.name}-{number}"
                    shutil.rmtree(target, ignore_errors=True)
                    shutil.copytree(place, target, symlinks=True)
                    (target / "failure.txt").write_text(
                        f"{said}\n{trace}", encoding="utf-8", errors="replace"
                    )
    return tally


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Ends the block with :class:`Hang` after a while, and the program where that does not help."""

    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(10 * seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def table(tallies: dict[str, Tally]) -> str:
    """Tried, survived and lost by area, and the first input of each kind of failure."""
    lines = [f"{'area':10} {'tried':>6} {'accepted':>9} {'refused':>8} {'lost':>5} {'slowest':>8}"]
    for name, tally in tallies.items():
        lines.append(
            f"{name:10} {tally.tried:6} {tally.accepted:9} {tally.refused:8} {tally.failures:5} {tally.slowest:7.1f}s"
        )
    for name, tally in tallies.items():
        lines += [f"{name}: {len(found)} x {kind}; first {found[0]}" for kind, found in tally.lost.items()]
    return "\n".join(lines)


def main(make: Callable[[str, Path], Area] = lambda name, place: AREAS[name](place)) -> int:
    """Runs what the command line asks for; 1 where an input was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count", nargs="*", metavar="AREA=N", help="areas and inputs; by default all, in full"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that an input may take")
    parser.add_argument("--keep", type=Path, help="folder for failing inputs")
    given = parser.parse_args()
    counts = dict(pair.split("=") for pair in given.count) if given.count else FULL
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    disable_progress_bar()
    tallies = {}
    for name, count in counts.items():
        with tempfile.TemporaryDirectory() as scratch:
            area = make(name, Path(scratch))
            tallies[name] = fuzz(area, int(count), given.seed, limit=given.limit, keep=given.keep)
            print(table({name: tallies[name]}), flush=True)
    if len(tallies) > 1:
        print(table(tallies))
    return int(any(tally.failures for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
