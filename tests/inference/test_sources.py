"""Streams as training data: the batches of a data set in order, and runs that resume in the middle of one."""

import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import torch
from torch.utils.data import IterableDataset

from probattn.inference.checkpoint import CheckpointStore
from probattn.inference.options import RunOptions
from probattn.inference.records import read_records
from probattn.inference.sources import source_of


class Stream(IterableDataset):
    """Rows of a mapping in order; ``endless`` repeats them without an end."""

    def __init__(self, data: dict[str, torch.Tensor], endless: bool = False) -> None:
        self.data, self.endless = data, endless

    def __iter__(self) -> Any:
        rows = range(len(self.data["y"]))
        for row in itertools.cycle(rows) if self.endless else rows:
            yield {name: column[row] for name, column in self.data.items()}


class Sized(Stream):
    def __len__(self) -> int:
        return len(self.data["y"])


def shuffled(data: dict[str, torch.Tensor]) -> Any:
    """A streaming data set of datasets with a buffer that is shuffled anew in every epoch, and rows made on the fly."""
    rows = [{name: column[row].tolist() for name, column in data.items()} for row in range(len(data["y"]))]
    stream = datasets.IterableDataset.from_generator(lambda: iter(rows))
    return stream.map(lambda row: {"y": row["y"] + 1}).shuffle(seed=0, buffer_size=5).with_format("torch")


def fit(tiny: ModuleType, data: Any, folder: Path | None = None, **options: Any) -> Any:
    arguments = {name: options.pop(name) for name in ("steps", "epochs", "resume") if name in options}
    validation = options.pop("validation", None)
    torch.manual_seed(0)
    driver = tiny.SVIDriver(
        tiny.Regression(dropout=0.1),
        shuffle=False,
        log_every=1,
        seed=0,
        cpu=True,
        progress=False,
        folder=folder,
        **{"batch_size": 3, "accumulation": 2} | options,
    )
    return driver.fit(data, validation, **arguments)


def numbers(folder: Path) -> list[dict[str, Any]]:
    dropped = ("seconds", "sites")
    return [
        {key: value for key, value in record.items() if key not in dropped}
        for record in read_records(folder / "metrics.jsonl")
    ]


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_gives_what_its_rows_give(tiny: ModuleType, tmp_path: Path, drop_last: bool) -> None:
    data, other = tiny.tiny_data(14), tiny.tiny_data(5, seed=2)
    options = {"drop_last": drop_last, "epochs": 3}
    fit(tiny, data, tmp_path / "rows", validation=other, **options)
    fit(tiny, Sized(data), tmp_path / "stream", validation=Stream(other), **options)
    assert numbers(tmp_path / "stream") == numbers(tmp_path / "rows")


@pytest.mark.parametrize("kind", [Sized, dict])
def test_rows_for_less_than_an_update_are_refused(tiny: ModuleType, kind: Any) -> None:
    data = kind(tiny.tiny_data(5))
    with pytest.raises(ValueError, match=r"(got 5 with drop_last|5 rows).*lower batch_size or accumulation"):
        fit(tiny, data, drop_last=True, epochs=2)


def test_an_endless_stream_is_read_for_so_many_steps(tiny: ModuleType, tmp_path: Path) -> None:
    data = tiny.tiny_data(12)
    fit(tiny, data, tmp_path / "rows", epochs=3)
    fit(tiny, Stream(data, endless=True), tmp_path / "stream", steps=6)
    rows, stream = numbers(tmp_path / "rows"), numbers(tmp_path / "stream")
    assert [record["loss"] for record in stream] == [record["loss"] for record in rows]
    assert {record["epoch"] for record in stream} == {0.0}


@pytest.mark.parametrize("number", range(2, 8))
def test_ranks_share_the_rows_of_a_data_set(number: int, tiny: ModuleType) -> None:
    data, options = tiny.tiny_data(17), RunOptions(batch_size=2, accumulation=2, shuffle=False)
    for rank in range(number):
        found = []
        for kind in (tiny_rows(data), Stream(data)):
            source = source_of(kind, options, rank, number)
            steps = [
                (weights, [batch["y"].tolist() for batch in batches])
                for weights, batches in source.steps(0, 4)
            ]
            parts = [(batch["y"].tolist(), size) for batch, size in source.evaluation((0,), None)]
            found.append((steps, parts))
        assert found[0] == found[1]


def tiny_rows(data: dict[str, torch.Tensor]) -> Any:
    return list(Stream(data))


@pytest.mark.slow_but("3-torch", "3-datasets")
@pytest.mark.parametrize("kind", ["torch", "datasets"])
@pytest.mark.parametrize("stopped", [1, 3, 4])
def test_a_resumed_run_is_the_uninterrupted_one(
    tiny: ModuleType, tmp_path: Path, stopped: int, kind: str
) -> None:
    """Three steps an epoch: stopped within the first epoch, at its end and within the second."""
    data = tiny.tiny_data(14)

    class KilledError(Exception):
        pass

    def kill(record: dict[str, Any], _: Any) -> None:
        if record["step"] == stopped:
            raise KilledError

    def stream() -> Any:
        return Stream(data) if kind == "torch" else shuffled(data)

    options: dict[str, Any] = {"steps": 8, "checkpoint_every": 1}
    fit(tiny, stream(), tmp_path / "whole", **options)
    with pytest.raises(KilledError):
        fit(tiny, stream(), tmp_path / "parts", callbacks=[kill], **options | {"checkpoint_every": 1})
    fit(tiny, stream(), tmp_path / "parts", resume="auto", **options)
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")
    whole, parts = (
        CheckpointStore(tmp_path / name / "checkpoints").load(8).tensors["model"]
        for name in ("whole", "parts")
    )
    torch.testing.assert_close(parts, whole, atol=0, rtol=0)


def test_a_shuffled_stream_is_shuffled_anew_in_every_epoch(tiny: ModuleType) -> None:
    data, options = tiny.tiny_data(14), RunOptions(batch_size=14, shuffle=False)
    source = source_of(shuffled(data), options, 0, 1)
    first, second = (next(batches)["y"] for _, batches in source.steps(0, 2))
    assert not torch.equal(first, second)
    torch.testing.assert_close(first.sort().values, (data["y"] + 1).sort().values)
    torch.testing.assert_close(second.sort().values, (data["y"] + 1).sort().values)


class Once(Stream):
    """A stream that cannot be read a second time."""

    def __init__(self, data: dict[str, torch.Tensor]) -> None:
        super().__init__(data)
        self.rows = super().__iter__()

    def __iter__(self) -> Any:
        yield from self.rows


@pytest.mark.parametrize(
    ("kind", "options", "error", "words"),
    [
        (Stream, {"epochs": 1}, ValueError, r"expected steps for a stream .*__len__"),
        (Stream, {"steps": 1, "num_workers": 1}, ValueError, r"num_workers=0 for a stream"),
        (Once, {"steps": 9}, ValueError, r"rows in epoch 2 of the stream, got fewer"),
        (lambda data: iter(Stream(data)), {"steps": 1}, TypeError, r"begins anew .*got an iterator"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(
    tiny: ModuleType, kind: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        fit(tiny, kind(tiny.tiny_data(14)), **options)


@pytest.mark.parametrize("options", [{}, {"shuffle": False, "length_pool": 2}])
def test_the_order_of_a_stream_is_its_own(tiny: ModuleType, options: dict[str, Any]) -> None:
    driver = tiny.SVIDriver(tiny.Regression(), cpu=True, progress=False, **options)
    with pytest.raises(ValueError, match=r"expected shuffle=False and no length_pool for a stream"):
        driver.fit(Stream(tiny.tiny_data(14)), steps=1)
