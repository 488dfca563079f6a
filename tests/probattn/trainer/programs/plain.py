"""Runs a program of this folder as transformers has it, without the lines that make it probabilistic.

Usage: plain.py PROGRAM FOLDER [ARGUMENT ...]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

CHANGES = (
    (r"^import probattn$", "from transformers import Trainer"),
    (r"^    net = convert\(net, probattn\.BayesianAttention\(\)\)\n", ""),
    (
        r"\bprobattn\.ProbabilisticTrainer(, (?=Seq2SeqTrainer)|\b)",
        lambda found: "" if found[1] else "Trainer",
    ),
)
OPTIONS = r"^        (prediction|num_samples)=.*\n"


def plain(program: str) -> str:
    """The program's source with each of the three lines undone, once."""
    for pattern, text in CHANGES:
        program, count = re.subn(pattern, text, program, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"expected {pattern} once, got it {count} times")
    return re.sub(OPTIONS, "", program, flags=re.MULTILINE)


def main(program: Path, *arguments: str) -> None:
    source = plain(program.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": program.stem}
    exec(compile(source, str(program), "exec"), namespace)
    namespace["main"](Path(arguments[0]), *arguments[1:])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
