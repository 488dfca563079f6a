"""The order of the data: a pure function of seed and epoch, cut into steps, micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, StackDataset, default_collate

from probattn.checks import check_integer
from probattn.sites.noise import seed_integers

Collate = Callable[[list[Any]], Any]


class Share(NamedTuple):
    """One rank's part of a micro-batch: rows, never none, and their fraction of the step's rows, 0 for a stand-in."""

    rows: list[int]
    weight: float


@dataclass(frozen=True)
class DataOrder:
    """The rows of every step, by seed and epoch; ``length_pool`` sorts those of so many steps by length."""

    num_rows: int
    batch_size: int
    accumulation: int = 1
    num_processes: int = 1
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    length_pool: int | None = None
    lengths: Sequence[int] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("num_rows", "batch_size", "accumulation", "num_processes", "length_pool"):
            if getattr(self, name) is not None:
                check_integer("DataOrder", name, getattr(self, name), minimum=1)
        if self.length_pool is not None:
            self._check_pool(len(self.lengths or ()))
        if self.steps_per_epoch < 1:
            raise ValueError(
                f"drop_last leaves no step: {self.num_rows} rows, but a step takes {self.rows_per_step}; "
                "lower batch_size or accumulation, or keep the last step"
            )

    def _check_pool(self, lengths: int) -> None:
        if not self.shuffle:
            raise ValueError(
                "DataOrder.length_pool: expected shuffle=True beside it; rows in order stay where they are"
            )
        if lengths != self.num_rows:
            raise ValueError(
                f"DataOrder.length_pool: expected the lengths of {self.num_rows} rows, got {lengths}"
            )

    @property
    def rows_per_step(self) -> int:
        """Rows of a full step over all ranks."""
        return self.batch_size * self.accumulation * self.num_processes

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, the incomplete last one included unless dropped."""
        full, rest = divmod(self.num_rows, self.rows_per_step)
        return full + (1 if rest and not self.drop_last else 0)

    def position(self, step: int) -> tuple[int, int]:
        """Epoch and step within it of the update that follows ``step`` completed ones."""
        return divmod(step, self.steps_per_epoch)

    def permutation(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Row indices of an epoch in their order, ``[N]``."""
        if not self.shuffle:
            return np.arange(self.num_rows)
        generator = np.random.default_rng(seed_integers([self.seed, epoch]))
        rows = generator.permutation(self.num_rows)
        return rows if self.length_pool is None else self._similar(rows, generator)

    def configuration(self) -> dict[str, Any]:
        """Settings that a resumed run must share; not the lengths, which follow from the data."""
        left_out = {"lengths"} | ({"length_pool"} if self.length_pool is None else set())
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in left_out}

    def _similar(
        self, rows: np.ndarray[Any, np.dtype[np.int64]], generator: np.random.Generator
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The same rows, those of each full step of similar length; an incomplete last step stays as it is."""
        assert self.length_pool is not None
        full = self.num_rows // self.rows_per_step * self.rows_per_step
        lengths, pool = np.asarray(self.lengths), self.length_pool * self.rows_per_step
        chunks = [rows[start : min(start + pool, full)] for start in range(0, full, pool)]
        ordered = [chunk[np.argsort(lengths[chunk], kind="stable")] for chunk in chunks]
        steps = np.concatenate([*ordered, rows[:0]]).reshape(-1, self.rows_per_step)
        return np.concatenate([generator.permutation(steps).ravel(), rows[full:]])

    def shares(self, step: int, rank: int) -> list[Share]:
        """One rank's micro-batches of the update that follows ``step`` completed ones."""
        return next(self.epoch_shares(step, rank))

    def epoch_shares(self, step: int, rank: int) -> Iterator[list[Share]]:
        """One rank's micro-batches of every step from ``step`` to the end of its epoch."""
        epoch, first = self.position(step)
        permutation = self.permutation(epoch)
        for index in range(first, self.steps_per_epoch):
            rows = permutation[index * self.rows_per_step : (index + 1) * self.rows_per_step]
            micro_batches = -(-len(rows) // (self.batch_size * self.num_processes))
            mine = np.array_split(rows, micro_batches * self.num_processes)[rank :: self.num_processes]
            empty, size = Share(rows[:1].tolist(), 0.0), len(rows)
            yield [Share(chunk.tolist(), len(chunk) / size) if len(chunk) else empty for chunk in mine]


def as_rows(data: Any, what: str) -> Any:
    """``data``, or a mapping's rows, once it is sure that it can be read by row; ``what`` names it in messages."""
    if isinstance(data, DataLoader):
        raise TypeError(
            f"{what}: expected a data set, got a DataLoader; the driver orders and batches the rows itself, so that a "
            "run can resume exactly: pass its data set, and batch_size and collate to SVIDriver"
        )
    if isinstance(data, Mapping):
        sizes = {name: len(column) for name, column in data.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"data: expected tensors with the same number of rows, got {sizes}")
        data = StackDataset(**data)
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if isinstance(data, IterableDataset) or not sized:
        raise TypeError(
            f"{what}: expected a mapping of tensors or a data set with len() and [row], got {type(data).__name__}"
        )
    if len(data) == 0:
        raise ValueError(f"{what}: expected at least one row, got none")
    return data


def row_lengths(rows: Any) -> Sequence[int]:
    """Lengths of a data set's rows, as its ``lengths()`` gives them; without it, those of their ``input_ids``."""
    if hasattr(rows, "lengths"):
        lengths: Sequence[int] = rows.lengths()
        return lengths
    first = rows[0]
    if not (isinstance(first, Mapping) and "input_ids" in first):
        raise TypeError(
            "train_data: length_pool needs a data set with a method lengths(), or rows with input_ids, got "
            f"{type(rows).__name__}; leave length_pool out"
        )
    return [_length(rows[row]) for row in range(len(rows))]


def _length(row: Mapping[str, Any]) -> int:
    """Tokens of a row without padding; of several texts, such as the endings of a choice, those of the longest."""
    tokens, mask = row["input_ids"], row.get("attention_mask")
    if isinstance(mask, Tensor):
        return int(mask.sum(dim=-1).max())
    return max(map(len, tokens)) if isinstance(tokens[0], Sequence) else len(tokens)


def collate_rows(rows: list[Any]) -> Any:
    """Stacks rows as torch does; a list of numbers in a row, as a ``datasets.Dataset`` has them, is a tensor."""
    return default_collate(
        [{n: _as_tensor(v) for n, v in row.items()} if isinstance(row, Mapping) else row for row in rows]
    )


def _as_tensor(values: Any) -> Any:
    """A tensor of nested lists of numbers; anything else as it is."""
    if not isinstance(values, list):
        return values
    first: Any = values
    while isinstance(first, list):
        first = first[0] if first else None
    return torch.tensor(values) if isinstance(first, bool | int | float) else values


def load_batches(
    rows: Any, batches: Sequence[list[int]], *, collate: Collate | None, num_workers: int, seed: Sequence[int]
) -> DataLoader[Any]:
    """Loader of given batches of rows; ``seed`` seeds the workers, so torch's generator is the same after resuming."""
    generator = torch.Generator()
    generator.manual_seed(int(np.random.SeedSequence(seed_integers(seed)).generate_state(1)[0]))
    options: dict[str, Any] = {"collate_fn": collate or collate_rows, "num_workers": num_workers}
    return DataLoader(rows, batch_sampler=list(batches), generator=generator, **options)
