"""Attention and lexical probe in the course of a training: recorded into the run's folder, and read from there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from transformers import PreTrainedModel

from probattn.files.durable import write_atomically
from probattn.files.json_files import JSONError, read_json
from probattn.inference import StepObserver
from probattn.models import RatedWords, rate_words
from probattn.report import Dynamics, ModelKey, WatchedExample, WatchedMaps, WatchedStep
from probattn.report.attention import rounded_rows
from probattn.report.dynamics import Bleu
from probattn.report.record import Count, Record
from probattn.tasks.errors import RunError, as_run_error, one_line
from probattn.tasks.sections.training import ProbeRecipe

FOLDER = "probe"
EXAMPLES = "examples.json"
"""Words of the examples whose maps are shown."""

STEP = re.compile(r"step-(\d+)\.safetensors")
Content = TypeVar("Content")


class ShownWords(Record):
    """The words of an example whose maps are shown, as :data:`EXAMPLES` has them."""

    row: Count
    text: str
    keys: tuple[str, ...]
    queries: tuple[str, ...]


class Translated(Record):
    """Scores of the watched sentences' translations at a step."""

    bleu: Bleu


@dataclass(frozen=True)
class Watched:
    """Examples that are watched in a training: rows, their words by row, and BLEU of all where they are translated."""

    options: ProbeRecipe
    rows: Any
    collate: Callable[[Sequence[Any]], Mapping[str, Tensor]]
    text: Callable[[int], str]
    keys: Callable[[int], list[str]]
    queries: Callable[[int], list[str]]
    bleu: Callable[[nn.Module], float] | None = None

    def batches(self) -> DataLoader[Any]:
        """All of them, in order."""
        return DataLoader(self.rows, batch_size=self.options.batch_size, collate_fn=self.collate)

    def check(self, model: nn.Module) -> None:
        """Raises ``RunError``, before anything is written, where the network has no probe."""
        one = DataLoader(Subset(self.rows, [0]), batch_size=1, collate_fn=self.collate)
        with as_run_error(TypeError, ValueError, where="probe"):
            self.rate(model, one)

    def rate(self, model: nn.Module, batches: DataLoader[Any] | None = None) -> RatedWords:
        """Ratings at this moment."""
        net = cast(PreTrainedModel, model.net)
        device = next(net.parameters()).device
        return RatedWords.gather(
            rate_words(net, {name: tensor.to(device) for name, tensor in batch.items()})
            for batch in batches or self.batches()
        )

    def observer(self, folder: Path) -> StepObserver:
        """Writes the ratings into a run's folder, one file a step."""
        path = folder / FOLDER

        def observe(step: int, model: nn.Module) -> None:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / EXAMPLES).exists():
                write_atomically(path / EXAMPLES, json.dumps(self._words(), ensure_ascii=False).encode())
            name = f"step-{step:06d}"
            if self.bleu is not None:
                write_atomically(path / f"{name}.json", json.dumps({"bleu": self.bleu(model)}).encode())
            self.rate(model).save(path / f"{name}.safetensors")

        return StepObserver(observe, self.options.watched())

    def _words(self) -> list[dict[str, Any]]:
        """Those whose maps are shown: of middling length, whatever they say."""
        lengths = [len(self.rows[row]["input_ids"]) for row in range(len(self.rows))]
        middle = median_low(lengths)
        rows = sorted(range(len(lengths)), key=lambda row: abs(lengths[row] - middle))[: self.options.shown]
        return [
            {"row": row, "text": self.text(row), "keys": self.keys(row), "queries": self.queries(row)}
            for row in rows
        ]


def recorded_steps(folder: Path) -> dict[int, Path]:
    """Files of ratings in a run's folder by step, in order."""
    path = folder / FOLDER
    files = [(STEP.fullmatch(file.name), file) for file in path.iterdir()] if path.is_dir() else []
    return dict(sorted((int(match[1]), file) for match, file in files if match is not None))


def recorded_bleu(folder: Path) -> dict[int, float]:
    """BLEU of the watched sentences by step, where it was recorded; ``RunError`` for a damaged file."""
    files = {step: file.with_suffix(".json") for step, file in recorded_steps(folder).items()}
    return {step: _read(file, TypeAdapter(Translated)).bleu for step, file in files.items() if file.exists()}


def read_ratings(folder: Path) -> dict[int, RatedWords]:
    """Ratings by step, in order; ``RunError`` for a damaged file, or files of different examples."""
    files = recorded_steps(folder)
    with as_run_error(ValueError):
        rated = {step: RatedWords.load(file) for step, file in files.items()}
    for step, value in rated.items():
        if not value.is_of_the_examples_of(rated[max(rated)]):
            raise RunError(
                f"{files[step]}: expected the examples of {files[max(rated)].name}, got others; train anew"
            )
    return rated


def read_dynamics(folder: Path, model: ModelKey, *, maps: bool) -> Dynamics | None:
    """Course of attention and probe in a run's training; None where that was not recorded."""
    rated = read_ratings(folder)
    if not rated:
        return None
    examples = _read(folder / FOLDER / EXAMPLES, TypeAdapter(list[ShownWords])) if maps else []
    last, scores = rated[max(rated)], recorded_bleu(folder)
    for words in examples:
        if last.lengths[last.example == words.row].tolist() != [len(words.keys)] * len(words.queries):
            raise RunError(
                f"{folder / FOLDER / EXAMPLES}: expected the words of example {words.row}, got others; train anew"
            )
    return Dynamics(
        model=model,
        examples=int(last.example.max()) + 1,
        outputs=len(last.lengths),
        chance=last.chance(),
        steps=tuple(
            WatchedStep(
                step=step,
                agreement=value.agreement(),
                with_last=last.agreement(v=value.attention),
                accuracy=value.accuracy,
                bleu=scores.get(step),
            )
            for step, value in rated.items()
        ),
        maps=tuple(_maps(rated, words) for words in examples),
    )


def same_examples(records: Sequence[Dynamics | None]) -> tuple[Dynamics, ...]:
    """Records of a run's networks, its own last, without a baseline that was watched on other examples."""
    recorded = [item for item in records if item is not None]
    return tuple(
        item
        for item in recorded
        if (item.examples, item.outputs, item.chance)
        == (recorded[-1].examples, recorded[-1].outputs, recorded[-1].chance)
    )


def _read(file: Path, kind: TypeAdapter[Content]) -> Content:
    try:
        return read_json(file, kind)
    except OSError as error:
        raise RunError(one_line(error)) from error
    except JSONError as error:
        problem = str(error).removeprefix(f"{file}: ")
        raise RunError(
            f"{file}: expected what --probe writes, got a damaged file ({problem}); train anew"
        ) from error


def _maps(rated: Mapping[int, RatedWords], words: ShownWords) -> WatchedExample:
    records = []
    for step, value in rated.items():
        rows = value.example == words.row
        attention, mask = (values[rows] for values in value.padded(value.attention))
        probe = value.padded(value.probe.exp())[0][rows]
        length = int(mask[0].sum())
        shown = {"attention": attention, "probe": probe}
        maps = {name: rounded_rows(item[:, :length].clamp(0, 1), 5) for name, item in shown.items()}
        records.append(WatchedMaps(step=step, **maps))
    return WatchedExample(text=words.text, keys=words.keys, queries=words.queries, maps=tuple(records))
