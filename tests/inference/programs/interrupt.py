"""Trains until a signal comes and says how that ended.

Usage: interrupt.py FOLDER STEPS
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

from tiny import NoisyRows, tiny_data, tiny_driver, tiny_model

FORMER = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def slowly(record: dict[str, Any], _: object) -> None:
    print(record["step"], flush=True)
    time.sleep(0.02)  # a signal may come here: between an update and its evaluation


def main(folder: Path, steps: int) -> None:
    model = tiny_model(dropout=0.2)
    driver = tiny_driver(model, folder=folder, batch_size=2, accumulation=2, callbacks=[slowly], eval_every=4)
    try:
        driver.fit(NoisyRows(tiny_data()), tiny_data(6, seed=2), steps=steps, resume="auto")
    except KeyboardInterrupt as error:
        assert {number: signal.getsignal(number) for number in FORMER} == FORMER
        raise SystemExit(f"interrupted: {error}") from None


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
