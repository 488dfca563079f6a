"""Where the batches of a run come from: a data set that is read by row, or a stream that is read in its order."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from probattn.inference.batches import DataOrder, Share, as_rows, load_batches, row_lengths
from probattn.inference.options import RunOptions
from probattn.inference.session import preserved_random_state

Step = tuple[list[float], Iterator[Any]]
"""One rank's part of an update: the weights of its micro-batches, and these."""


class Source(ABC):
    """The batches of one rank, of ``num_processes``."""

    def __init__(self, data: Any, options: RunOptions, rank: int, num_processes: int) -> None:
        self.data, self.options, self.rank, self.num_processes = data, options, rank, num_processes

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int | None:
        """Updates in a pass over the data; None for a stream that does not say its length."""

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """Settings that a resumed run must share."""

    @abstractmethod
    def position(self, step: int) -> tuple[int, int]:
        """Epoch and step within it of the update that follows ``step`` completed ones."""

    @abstractmethod
    def restore(self, step: int, epoch: int, index: int) -> None:
        """Takes over the position in a checkpoint."""

    @abstractmethod
    def steps(self, step: int, total: int) -> Iterator[Step]:
        """The updates that follow ``step`` completed ones, up to ``total``."""

    @abstractmethod
    def evaluation(self, seed: tuple[int, ...], limit: int | None) -> Iterator[tuple[Any, int]]:
        """This rank's batches of one pass in order, or the first ``limit``, with their numbers of rows."""

    def total(self, steps: int | None, epochs: int | None) -> int:
        """Updates of a run that was asked for in either way."""
        if steps is not None:
            return steps
        if self.steps_per_epoch is None:
            raise ValueError(
                "SVIDriver.fit: expected steps for a stream that does not say its length, got epochs; give steps=..., "
                "or the stream a method __len__ with the number of its rows"
            )
        if epochs and not self.steps_per_epoch:
            raise ValueError(
                f"SVIDriver.fit: expected rows for an update, got {len(self.data)} with drop_last; "
                "lower batch_size or accumulation, or keep the last step"
            )
        return (epochs or 0) * self.steps_per_epoch

    def epoch(self, step: int) -> float:
        """Completed passes over the data, whole ones for a stream that does not say its length."""
        length = self.steps_per_epoch
        return float(self.position(step)[0]) if length is None else round(step / length, 6)

    def _order(self, rows: int, **order: Any) -> DataOrder:
        """Rows cut into the steps of this run, in order unless ``order`` says another."""
        options, order = self.options, {"shuffle": False} | order
        sizes = options.batch_size, options.accumulation, self.num_processes
        return DataOrder(rows, *sizes, **order)


class _RowSource(Source):
    """Batches of a data set that is read by row, in the order of :class:`DataOrder`."""

    @cached_property
    def order(self) -> DataOrder:
        options = self.options
        order = {name: getattr(options, name) for name in ("seed", "shuffle", "drop_last", "length_pool")}
        lengths = None if options.length_pool is None else row_lengths(self.data)
        return self._order(len(self.data), lengths=lengths, **order)

    @property
    def steps_per_epoch(self) -> int:
        return self.order.steps_per_epoch

    def configuration(self) -> dict[str, Any]:
        return self.order.configuration()

    def position(self, step: int) -> tuple[int, int]:
        return self.order.position(step)

    def restore(self, step: int, epoch: int, index: int) -> None:
        """The position follows from the step."""

    def steps(self, step: int, total: int) -> Iterator[Step]:
        while step < total:
            epoch, _ = self.order.position(step)
            steps = list(self.order.epoch_shares(step, self.rank))[: total - step]
            rows = [share.rows for shares in steps for share in shares]
            batches = iter(self._load(rows, (self.options.seed, epoch, self.rank)))
            for shares in steps:
                yield [share.weight for share in shares], itertools.islice(batches, len(shares))
            step += len(steps)

    def evaluation(self, seed: tuple[int, ...], limit: int | None) -> Iterator[tuple[Any, int]]:
        rows, size = list(range(self.rank, len(self.data), self.num_processes)), self.options.batch_size
        batches = [rows[first : first + size] for first in range(0, len(rows), size)][:limit]
        return zip(self._load(batches, seed), map(len, batches), strict=True)

    def _load(self, batches: list[list[int]], seed: tuple[int, ...]) -> DataLoader[Any]:
        options = self.options
        return load_batches(
            self.data, batches, collate=options.collate, num_workers=options.num_workers, seed=seed
        )


class _StreamSource(Source):
    """A stream in its own order: every rank reads all rows, a resumed run up to its place, the last step the rest."""

    def __init__(self, data: Any, options: RunOptions, rank: int, num_processes: int) -> None:
        super().__init__(data, options, rank, num_processes)
        self._epoch, self._start = 0, 0

    @property
    def steps_per_epoch(self) -> int | None:
        try:
            rows = len(self.data)
        except TypeError:
            return None
        full, rest = divmod(rows, self._order(1).rows_per_step)
        return full + (1 if rest and not self.options.drop_last else 0)

    def configuration(self) -> dict[str, Any]:
        """A stream's own order cannot be compared."""
        order = self._order(1).configuration() | {"drop_last": self.options.drop_last}
        names = ("batch_size", "accumulation", "num_processes", "drop_last")
        return {"stream": True} | {name: order[name] for name in names}

    def position(self, step: int) -> tuple[int, int]:
        """Epoch and step within it, as far as the stream has been read."""
        return self._epoch, step - self._start

    def restore(self, step: int, epoch: int, index: int) -> None:
        self._epoch, self._start = epoch, step - index

    def steps(self, step: int, total: int) -> Iterator[Step]:
        size, collate = self._order(1).rows_per_step, self.options.collate or default_collate
        while step < total:
            if hasattr(self.data, "set_epoch"):
                self.data.set_epoch(self._epoch)
            stream = iter(self.data)
            with preserved_random_state(torch.device("cpu")):
                for _ in itertools.islice(stream, (step - self._start) * size):
                    pass
            while step < total and (rows := list(itertools.islice(stream, size))):
                if len(rows) < size and self.options.drop_last:
                    break
                shares = self._order(len(rows)).shares(0, self.rank)
                yield [share.weight for share in shares], _collated(rows, shares, collate)
                step += 1
            if step < total:
                if step == self._start:
                    raise ValueError(
                        f"train_data: expected rows in epoch {self._epoch + 1} of the stream, got fewer than a step "
                        "takes; a stream that is read more than once must begin anew at every iter()"
                    )
                self._epoch, self._start = self._epoch + 1, step

    def evaluation(self, seed: tuple[int, ...], limit: int | None) -> Iterator[tuple[Any, int]]:
        collate = self.options.collate or default_collate
        stream = itertools.islice(self.data, self.rank, None, self.num_processes)
        for _ in itertools.count() if limit is None else range(limit):
            rows = list(itertools.islice(stream, self.options.batch_size))
            if not rows:
                return
            yield collate(rows), len(rows)


def _collated(rows: list[Any], shares: list[Share], collate: Any) -> Iterator[Any]:
    return (collate([rows[index] for index in share.rows]) for share in shares)


def is_stream(data: Any) -> bool:
    """True for data that can be iterated over and not read by row."""
    if isinstance(data, DataLoader):
        return False
    by_row = hasattr(data, "__getitem__") and not isinstance(data, IterableDataset)
    return hasattr(data, "__iter__") and not by_row


def check_data(data: Any, what: str, options: RunOptions) -> Any:
    """``data``, or a mapping's rows, if it can be read with these options; ``what`` names it in errors."""
    if not is_stream(data):
        return as_rows(data, what)
    if iter(data) is data:
        raise TypeError(
            f"{what}: expected a data set or a stream that begins anew at every iter(), got an iterator, "
            f"{type(data).__name__}; a run must be able to read it again"
        )
    if options.num_workers:
        raise ValueError(
            f"{what}: expected num_workers=0 for a stream, which this process reads in its order, got "
            f"{options.num_workers}"
        )
    if what == "train_data" and (options.shuffle or options.length_pool is not None):
        raise ValueError(
            f"{what}: expected shuffle=False and no length_pool for a stream, whose order is its own; shuffle the "
            "stream itself (datasets: data.shuffle(seed=0, buffer_size=1000))"
        )
    return data


def source_of(data: Any, options: RunOptions, rank: int, num_processes: int) -> Source:
    """The source of the batches of checked data."""
    kind = _StreamSource if is_stream(data) else _RowSource
    return kind(data, options, rank, num_processes)
