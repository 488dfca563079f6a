"""Data that a run was not trained on, and its predictions of them, which are kept in its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, model_validator

from probattn.checks import shown
from probattn.data import TextDataset
from probattn.files.durable import digest, write_atomically
from probattn.files.json_files import JSON_OBJECT, JSONError, parse_json
from probattn.files.manifest import manifest_content
from probattn.models.hosts.description import CARD
from probattn.report.record import Record
from probattn.tasks.answering import Drawing
from probattn.tasks.progress import note

FOLDER = "held_out"
"""Folder, in that of a run, of its predictions of held-out data."""
ANSWERS = "answers"
"""In the first line of such a file, the sum of the others."""
NEAR_ONE = 1e-2
"""How far from 1 the sum of probabilities in half precision may be."""


class ClassAnswer(Record):
    """What is stored of an answer of one class, as :meth:`probattn.tasks.Answering.answers` has it for programs."""

    label: str
    probabilities: dict[str, float]
    entropy: float
    mutual_information: float

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (problem := answer_problem(vars(self))) is not None:
            raise ValueError(problem)
        return self


@dataclass(frozen=True)
class HeldOut:
    """Inputs that a run was not trained on: texts, true answers, and ``examples`` where a text does not say all.

    ``labels`` are names of classes, or what :meth:`probattn.tasks.Deciding.wrong` compares with; ``seen`` are numbers
    of the inputs that are in the training or validation data too; ``about`` are texts, in the plural, several inputs
    of which may share one; ``record`` is what is stored of an answer.
    """

    title: str
    role: str
    source: str
    texts: Sequence[str]
    pairs: Sequence[str] | None
    labels: Sequence[Any] | None
    examples: Sequence[Mapping[str, Any]] | None = None
    seen: Sequence[int] = ()
    about: str | None = None
    record: type[Record] = ClassAnswer

    def rows(self, indices: Sequence[int]) -> HeldOut:
        """The inputs at some places, in the order given."""
        fields: dict[str, Any] = {
            name: [values[index] for index in indices]
            for name in ("texts", "pairs", "labels", "examples")
            if (values := getattr(self, name)) is not None
        }
        return replace(self, **fields)

    @property
    def unseen(self) -> list[int]:
        """Places of the other inputs."""
        return sorted(set(range(len(self.texts))) - set(self.seen))

    def shortest_first(self) -> list[int]:
        """Places of the inputs by their length in characters."""
        return self.as_texts().shortest_first()

    def as_texts(self) -> TextDataset:
        """The inputs as a data set of texts without classes."""
        pairs = None if self.pairs is None else tuple(self.pairs)
        return TextDataset(tuple(self.texts), None, (), self.source, pairs=pairs)

    def stored(self, run: Path, key: str, drawing: Drawing) -> list[dict[str, Any]] | None:
        """Predictions of these data that the run's folder holds for its network, recipe and drawing; None for none."""
        file = run / FOLDER / f"{key}.jsonl"
        try:
            first, *lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            head = _parsed(first, 1, JSON_OBJECT)
            written = head.pop(ANSWERS, None)
            if head != self._head(run, drawing):
                return None
            read: TypeAdapter[Any] = TypeAdapter(self.record)
            answers = [_parsed(line, number, read).model_dump() for number, line in enumerate(lines, 2)]
            if len(lines) != len(self.texts) or digest(lines) != written:
                raise JSONError(": expected the lines that were written, got others")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            note(f"{file}: expected UTF-8 text, got other bytes; its data are predicted anew")
            return None
        except JSONError as error:
            note(f"{file}{error}; its data are predicted anew")
            return None
        return answers

    def store(
        self, run: Path, key: str, drawing: Drawing, answers: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Writes predictions into the run's folder, and returns what it wrote of them; see :meth:`stored`."""
        rows = [{name: answer[name] for name in self.record.model_fields} for answer in answers]
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        head = json.dumps({**self._head(run, drawing), ANSWERS: digest(lines)}, ensure_ascii=False)
        file = run / FOLDER / f"{key}.jsonl"
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, "".join(f"{line}\n" for line in (head, *lines)).encode())
        return rows

    @property
    def digest(self) -> str:
        """A fingerprint of the inputs and their classes."""
        values = (self.source, *self.texts, *(self.pairs or ()), *(self.labels or ()))
        content = [
            *values,
            *(str(value) for example in self.examples or () for value in map(_named, example.values())),
        ]
        return digest(f"{value}\0" for value in content)

    def _head(self, run: Path, drawing: Drawing) -> dict[str, Any]:
        """What predictions depend on: the data, the recipe and the network of the run, and the draws."""
        recipe = run / "recipe.yaml"
        contents = [recipe.read_bytes() if recipe.exists() else b"", _network(run)]
        draws = {name: getattr(drawing, name) for name in ("num_samples", "seed", "uncertainty")}
        return {"data": self.digest, "run": digest(contents), **draws}

    def doubts(self) -> Iterator[str]:
        """What weakens a guarantee that is tested on these inputs, in sentences."""
        size, rest = len(self.texts), self.rows(self.unseen)
        if self.seen:
            yield (
                f"{self.source}: {len(self.seen):,} of its {size:,} inputs are in the training or validation data too "
                "and are left out."
            )
        copies = rest.as_texts().copies()
        if self.about is not None and copies:
            yield (
                f"{self.source}: its {len(rest.texts):,} inputs are about {len(rest.texts) - copies:,} {self.about}; "
                "the guarantee counts them as independent and holds less often than stated where answers about one "
                "text are wrong together."
            )
        elif self.examples is None and copies > len(rest.texts) / 100:
            yield (
                f"{self.source}: {copies:,} of its {len(rest.texts):,} inputs are copies of others; the guarantee "
                "counts them as independent and holds less often than stated: leave each input in once."
            )


def network_digest(run: Path, recipe: Any = None) -> str:
    """A fingerprint of the network in a run's folder and, with a recipe, of how long its inputs may be."""
    sections = {} if recipe is None else {name: getattr(recipe, name) for name in type(recipe).model_fields}
    lengths = [
        f"{name} {getattr(value, key)}"
        for name, value in sections.items()
        for key in ("max_length", "stride", "max_answer_length")
        if hasattr(value, key)
    ]
    return digest([_network(run), *lengths])


def _network(run: Path) -> bytes:
    """What names the network of a run; without its manifest the sums of its files are made anew."""
    return manifest_content(run / "model", without=(CARD,))


def answer_problem(answer: Mapping[str, Any]) -> str | None:
    """What is wrong with an answer for programs of one class, in words; None for one that is right.

    Example:
        >>> answer_problem({"label": "c", "probabilities": {"a": 0.75, "b": 0.25}})
        "expected a label among its classes a, b, got 'c'"
    """
    by_name, label = answer["probabilities"], answer["label"]
    if label not in by_name:
        return f"expected a label among its classes {', '.join(map(str, list(by_name)[:12]))}, got {shown(label)}"
    if not (all(value >= 0 for value in by_name.values()) and abs(sum(by_name.values()) - 1) < NEAR_ONE):
        return f"expected probabilities >= 0 that sum to 1, got {list(by_name.values())[:6]}"
    numbers = {name: answer[name] for name in ("entropy", "mutual_information") if name in answer}
    wrong = next((name for name, value in numbers.items() if not math.isfinite(value)), None)
    return None if wrong is None else f"expected a finite {wrong}, got {numbers[wrong]}"


def named(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """An answer whose classes have names; numbered ones, such as the endings of a multiple choice, are "0", "1", ...

    Example:
        >>> named({"label": 1, "probabilities": [0.25, 0.75]})
        {'label': '1', 'probabilities': {'0': 0.25, '1': 0.75}}
    """
    values = answer.get("probabilities", {})
    if isinstance(values, Mapping):
        return answer
    numbered = {str(number): value for number, value in enumerate(values)}
    return {**answer, "label": str(answer["label"]), "probabilities": numbered}


def _parsed(line: str, number: int, kind: TypeAdapter[Any]) -> Any:
    """A line of a file of predictions; :class:`JSONError` says what is wrong with it, and where."""
    try:
        return parse_json(line, kind)
    except JSONError as error:
        raise JSONError(f" line {number}: {error}") from error


def _named(value: Any) -> Any:
    """A part of an example, by which a changed one differs; of a file also its size and its time."""
    if isinstance(value, Path):
        state = value.stat()
        return value, state.st_size, state.st_mtime_ns
    return value.tobytes() if hasattr(value, "tobytes") else value
