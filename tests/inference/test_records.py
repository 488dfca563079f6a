"""Records: what is written can be read, and a file cut by a kill or back to a step too."""

import json
import math
from pathlib import Path

import pytest

from probattn.inference.records import RecordsError, RecordWriter, read_records, truncate_records


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_every_append_is_one_line_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    with RecordWriter(path) as writer:
        for step in (1, 2):
            writer.append({"kind": "train", "step": step, "site": "é"})
            assert [json.loads(line)["step"] for line in lines_of(path)] == list(range(1, step + 1))


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "m.jsonl") as writer:
        writer.append({"step": 1, "sites": {"a": {"cv": math.nan}}, "list": [math.inf, 1.0], "ok": 0.1})
    assert read_records(tmp_path / "m.jsonl") == [
        {"step": 1, "sites": {"a": {"cv": None}}, "list": [None, 1.0], "ok": 0.1}
    ]


def test_floats_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 1e-308, 5e-324, 2.0**60 + 1]
    with RecordWriter(tmp_path / "m.jsonl") as writer:
        writer.append({"step": 1, "values": values})
    assert read_records(tmp_path / "m.jsonl")[0]["values"] == values


def test_a_missing_file_has_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("cut", range(1, 18))
def test_an_unfinished_last_line_is_passed_over(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n' + '{"step": 2, "é": 0}\n'.encode()[:cut])
    assert read_records(path) == [{"step": 1}]


def test_another_broken_line_is_refused_by_number(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"line 2.*nonsense"):
        read_records(path)


def test_truncation_keeps_the_lines_up_to_a_step_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with RecordWriter(path) as writer:
        for step in (1, 2, 2, 3, 4):
            writer.append({"step": step, "loss": 0.1 * step, "site": "é"})
    before = lines_of(path)
    with path.open("a") as file:
        file.write('{"step": 5, "lo')
    truncate_records(path, 2)
    assert lines_of(path) == before[:3]
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.jsonl"]


def test_truncation_of_nothing_makes_nothing(tmp_path: Path) -> None:
    truncate_records(tmp_path / "none.jsonl", 3)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full, a device of Linux on which every write fails")
    writer = RecordWriter(full)
    with pytest.raises(OSError, match=r"writing the records /dev/full: the disk is full.*resume"):
        writer.append({"step": 1})
    writer.close()  # does not try again


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        "3",
        "[" * 100_000,
        '{"step": NaN}',
        '{"step": -1}',
        '{"step": 1.5}',
        '{"step": true}',
        '{"step": "1"}',
        '{"step": ' + "9" * 5000 + "}",
        '{"step": 1, "loss": 1e400}',
        '{"step": 1, "loss": NaN}',
        '{"step": 1, "loss": 1e200}',
        '{"step": 1, "seconds": "long"}',
        '{"step": 1, "sites": {"a": 1}}',
        '{"step": 1, "tokens": []}',
    ],
)
def test_lines_that_are_no_record_are_refused_by_number_also_on_resuming(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    for read in (read_records, lambda file: truncate_records(file, 1)):
        with pytest.raises(
            RecordsError, match=r"m.jsonl, line 2: expected a record.*remove the line"
        ) as caught:
            read(path)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert len(lines_of(path)) == 3


def test_whatever_a_training_writes_is_a_record(tmp_path: Path) -> None:
    record = {
        "kind": "train",
        "step": 0,
        "loss": None,
        "kl_reduction": "mean",
        "learning_rates": {"model": 1e-3},
        "particles": {"layer": {"bandwidth": 0.5, "kernel": "rbf"}},
        "sites": {"layer": {"cv": None, "kl_nats": 1}},
        "accuracy": [0.5, None, 1],
        "seconds": 0.25,
    }
    with RecordWriter(tmp_path / "m.jsonl") as writer:
        writer.append(record)
    assert read_records(tmp_path / "m.jsonl") == [record]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_while_it_is_written_is_noticed(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "run" / "m.jsonl"
    with RecordWriter(path) as writer:
        writer.append({"step": 1})
        writer.sync()
        path.unlink()
        if replaced:
            path.write_text("another\n")
        writer.append({"step": 2})
        with pytest.raises(
            FileNotFoundError, match=r"m\.jsonl: the file was removed or replaced.*train again"
        ):
            writer.sync()
