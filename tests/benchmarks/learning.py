"""Times what is measured of how attention learns: `make bench`.

IBM Model 1 on the training pairs of Multi30k, five steps of expectation-maximisation, where `PROBATTN_DATA` has them.
And updates of many copying models as one batched program on all cores, against one after another on one core, whose
time is divided by the number of cores, as if each had a part of the models and none disturbed another. And the gradient
of an LSTM over padded texts, beside that over torch's packed sequences. Variants take turns within every round.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from attention import QUIET, Step, machine, spread, time_steps, timed
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from probattn.data import DataError, load_multi30k
from probattn.inference import ManyRunsDriver
from probattn.models.copying import CopyingOptions, CopyingRuns, CopyTask
from probattn.models.layers import read_padded
from probattn.probes import IBMModel1, ParallelCorpus

CPU = torch.device("cpu")
STEPS = 5
SECONDS = 60.0
"""In which IBM Model 1 is to be done."""

UPDATES = 5
"""Of every model in a turn."""

TEXTS, VECTOR, UNITS = 32, 50, 64
"""Padded texts, the numbers that stand for a word, and the LSTM's units in each of two directions."""

TITLES = {
    "batched": "one batched program",
    "cores": "a part on each core, at best",
    "padded": "padding read too",
    "packed": "packed sequences",
}


def ibm_model1(pairs: tuple[tuple[str, ...], tuple[str, ...]], rounds: int) -> dict[str, Any]:
    """Seconds for numbering the words and five steps, the median over rounds."""
    words = [[sentence.lower().split() for sentence in side] for side in pairs]

    def fit() -> None:
        IBMModel1.fit(ParallelCorpus.from_words(*words), STEPS)

    seconds = statistics.median(timed(fit, CPU) for _ in range(rounds))
    return {
        "pairs": len(words[0]),
        "steps": STEPS,
        "seconds": seconds,
        "bar": SECONDS,
        "passed": seconds <= SECONDS,
    }


def many_runs(runs: int, width: int, rounds: int) -> dict[str, Any]:
    """Seconds of an update of all models, and their ratio to a part on each core in the same round."""
    task, cores = CopyTask(20, length=20), os.cpu_count() or 1
    seeds = range(runs)
    seconds: dict[str, list[float]] = {"batched": [], "cores": []}
    for number in range(rounds + 1):  # the first warms up
        with threads(cores):
            batched = timed(updates(task, seeds, width), CPU)
        with threads(1):
            alone = sum(timed(updates(task, [seed], width), CPU) for seed in seeds)
        if number:
            seconds["batched"].append(batched / UPDATES)
            seconds["cores"].append(alone / cores / UPDATES)
    return {"runs": runs, "width": width, "variants": beside("cores", seconds)}


def padded_texts(words: int, rounds: int) -> dict[str, Any]:
    """Seconds of an LSTM and its gradient over texts of half to all of some words, and their ratio to packed ones."""
    torch.manual_seed(0)
    lstm = nn.LSTM(VECTOR, UNITS, batch_first=True, bidirectional=True)
    lengths = torch.linspace(words // 2, words, TEXTS).long()
    mask = torch.arange(words) < lengths[:, None]
    texts = torch.randn(TEXTS, words, VECTOR, requires_grad=True)

    def packed() -> Tensor:
        states, _ = lstm(pack_padded_sequence(texts, lengths, batch_first=True, enforce_sorted=False))
        unpacked: Tensor = pad_packed_sequence(states, batch_first=True)[0]
        return unpacked

    steps: dict[str, Step] = {
        "padded": lambda: read_padded(lstm, texts, mask)[0].sum().backward(),
        "packed": lambda: packed().sum().backward(),
    }
    seconds = time_steps("padded texts", steps, rounds, CPU)
    return {"texts": TEXTS, "words": words, "units": UNITS, "variants": beside("packed", seconds)}


def beside(reference: str, seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians of seconds over rounds, and of their ratios to the reference's of the same round."""
    variants = {}
    for name, own in seconds.items():
        ratios = [one / other for one, other in zip(own, seconds[reference], strict=True)]
        variants[name] = {"seconds": statistics.median(own), "ratio": spread(ratios)}
    return variants


def updates(task: CopyTask, seeds: Any, width: int) -> Callable[[], Any]:
    """A driver's whole call of a few updates, ready to start."""
    model = CopyingRuns(CopyingOptions(task.vocabulary, width=width), seeds)
    driver = ManyRunsDriver(
        model, lambda step: task.draw(seeds, step, 32), UPDATES, learning_rate=1e-3, progress=False, cpu=True
    )
    return driver.fit


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch with a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def print_tables(content: dict[str, Any], console: Console) -> None:
    """What was measured."""
    model = content["ibm_model1"]
    if model is not None:
        verdict = "pass" if model["passed"] else "FAIL"
        console.print(
            f"IBM Model 1: {model['pairs']:,} pairs, {model['steps']} steps, {model['seconds']:.1f} s: "
            f"{verdict} (<= {model['bar']:.0f} s)"
        )
    runs, texts = content["many_runs"], content["padded_texts"]
    for title, found in (
        (f"update of {runs['runs']} models", runs),
        (f"gradient over {texts['texts']} texts of up to {texts['words']} words", texts),
    ):
        table = Table("variant", "seconds", "ratio", "quartiles", title=title)
        for name, row in found["variants"].items():
            low, high = row["ratio"]["quartiles"]
            figures = f"{row['seconds']:.3f}", f"{row['ratio']['median']:.2f}"
            table.add_row(TITLES[name], *figures, f"{low:.2f}..{high:.2f}")
        console.print(table)


def main(
    rounds: Annotated[int, typer.Option(min=2, help="Rounds; five or more for figures.")] = 5,
    runs: Annotated[int, typer.Option(min=1, help="Copying models.")] = 20,
    width: Annotated[int, typer.Option(min=1, help="Of the copying models.")] = 64,
    words: Annotated[int, typer.Option(min=2, help="Of the longest padded text.")] = 200,
    output: Annotated[Path, typer.Option(help="The JSON file.")] = Path("bench/learning.json"),
) -> None:
    """Times IBM Model 1, many small models at once and padded texts, and writes and prints the figures."""
    console = Console()
    about = machine(CPU)
    if about["load_before"] > QUIET:
        console.print(
            f"The machine is busy (load {about['load_before']:.1f}): these figures are not to be kept."
        )
    try:
        train = load_multi30k().train
        model = ibm_model1((train.sources, train.targets), rounds)
    except DataError as error:
        console.print(f"IBM Model 1 is left out: {error}")
        model = None
    content = {
        "machine": about,
        "rounds": rounds,
        "ibm_model1": model,
        "many_runs": many_runs(runs, width, rounds),
        "padded_texts": padded_texts(words, rounds),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print_tables(content, console)
    console.print(f"Written to {output}")


if __name__ == "__main__":
    typer.run(main)
