"""Data that a run was not trained on, and its predictions of them, which are kept in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probattn.data import TextDataset
from probattn.files.durable import digest
from probattn.files.json_files import write_json_lines
from probattn.tasks.progress import note

FOLDER = "held_out"
"""Folder, in that of a run, of its predictions of held-out data."""
KEPT = ("label", "probabilities", "entropy", "mutual_information")
"""What is kept of an answer, as :meth:`probattn.tasks.Task.answers` has it for programs."""


@dataclass(frozen=True)
class HeldOut:
    """Inputs that a run was not trained on.

    Attributes:
        title: of the data set, for people.
        role: validation, in_domain, shifted or out_of_domain.
        source: where they are from.
        texts: as :meth:`Task.predict` takes them.
        pairs: second texts; None where the task has none.
        labels: names of their classes; None where these are unknown.
        examples: as the task itself reads them, where a text does not say all; None where it does.
        known: places of the inputs that are in the training or validation data too.
    """

    title: str
    role: str
    source: str
    texts: Sequence[str]
    pairs: Sequence[str] | None
    labels: Sequence[str] | None
    examples: Sequence[Mapping[str, Any]] | None = None
    known: Sequence[int] = ()

    def rows(self, places: Sequence[int]) -> HeldOut:
        """The inputs at some places, in the order given."""
        chosen: dict[str, Any] = {
            name: [values[place] for place in places]
            for name in ("texts", "pairs", "labels", "examples")
            if (values := getattr(self, name)) is not None
        }
        return replace(self, **chosen)

    @property
    def unknown(self) -> list[int]:
        """Places of the other inputs."""
        return sorted(set(range(len(self.texts))) - set(self.known))

    def shortest_first(self) -> list[int]:
        """Places of the inputs by their length in characters."""
        return self.as_texts().shortest_first()

    def as_texts(self) -> TextDataset:
        """The inputs as a data set of texts without classes."""
        pairs = None if self.pairs is None else tuple(self.pairs)
        return TextDataset(tuple(self.texts), None, (), self.source, pairs=pairs)

    def kept(self, run: Path, key: str, drawing: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Predictions that the run's folder holds; None where there are none of these data, made in this way.

        They hold for the network and the recipe that the folder had when they were made.

        Args:
            run: the run's folder.
            key: of the data among those of the task.
            drawing: how to predict, as options of :meth:`Task.predict`.
        """
        file = run / FOLDER / f"{key}.jsonl"
        try:
            first, *rest = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
        except FileNotFoundError:
            return None
        except ValueError:
            note(f"{file}: cannot be read; its data are predicted anew")
            return None
        size = len(self.texts)
        whole = len(rest) == size and all(isinstance(each, dict) and set(KEPT) <= set(each) for each in rest)
        return rest if first == self._head(run, drawing) and whole else None

    def keep(
        self, run: Path, key: str, drawing: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Writes predictions into the run's folder, and returns what it wrote of them; see :meth:`kept`."""
        kept = [{name: each[name] for name in KEPT} for each in answers]
        file = run / FOLDER / f"{key}.jsonl"
        file.parent.mkdir(exist_ok=True)
        write_json_lines(file, [self._head(run, drawing), *kept])
        return kept

    @property
    def digest(self) -> str:
        """A fingerprint of the inputs and their classes."""
        values = (self.source, *self.texts, *(self.pairs or ()), *(self.labels or ()))
        parts = [
            *values,
            *(str(part) for example in self.examples or () for part in map(_named, example.values())),
        ]
        return digest(f"{part}\0" for part in parts)

    def _head(self, run: Path, drawing: Mapping[str, Any]) -> dict[str, Any]:
        """What predictions depend on: the data, the files of the run and the draws."""
        files = [run / name for name in ("recipe.yaml", "model/manifest.json")]
        return {
            "data": self.digest,
            "run": digest(file.read_bytes() for file in files if file.exists()),
            **drawing,
        }

    def doubts(self) -> Iterator[str]:
        """What is to be known of the inputs where a promise is tested on them, in sentences."""
        size, rest = len(self.texts), self.rows(self.unknown)
        if self.known:
            yield (
                f"{self.source}: {len(self.known):,} of its {size:,} inputs are in the training or validation data too "
                "and are left out."
            )
        copies = rest.as_texts().copies()
        if self.examples is None and copies > len(rest.texts) / 100:
            yield (
                f"{self.source}: {copies:,} of its {len(rest.texts):,} inputs are copies of others; the promise counts "
                "them as independent and holds less often than it says: leave each input in once."
            )


def network_digest(run: Path, recipe: Any = None) -> str | None:
    """A fingerprint of the network in a run's folder; None of an earlier version's, without sums of its files.

    With a recipe it is also one of how long inputs may be, which changes what the network makes of them.
    """
    manifest = run / "model/manifest.json"
    if not manifest.exists():
        return None
    sections = {} if recipe is None else {name: getattr(recipe, name) for name in type(recipe).model_fields}
    lengths = [
        f"{name} {value.max_length}" for name, value in sections.items() if hasattr(value, "max_length")
    ]
    return digest([manifest.read_bytes(), *(each.encode() for each in lengths)])


def _named(value: Any) -> Any:
    """A part of an example, by which a changed one differs; of a file also its size and its time."""
    if isinstance(value, Path):
        state = value.stat()
        return value, state.st_size, state.st_mtime_ns
    return value.tobytes() if hasattr(value, "tobytes") else value
