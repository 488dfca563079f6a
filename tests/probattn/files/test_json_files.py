"""JSON of others: what does not fit is one kind of error that says where, however it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from probattn.files.json_files import JSONError, parse_json, read_json

NUMBERS = TypeAdapter(dict[str, float])


DEEP, LONG = "[" * 100_000, '{"a": ' + "9" * 10_000 + "}"


@pytest.mark.parametrize(
    "data", ["", "{", DEEP, '{"a": ' * 5000, LONG, b"\xff\xfe{}", '{"\\ud800": 1}', "[1]", "null"]
)
def test_whatever_is_wrong_is_one_error(data: Any) -> None:
    with pytest.raises(JSONError) as caught:
        parse_json(data, NUMBERS)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_place_value_and_number_of_problems_are_named(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    file.write_text('{"first": 1, "second": "' + "x" * 5000 + '", "third": []}')
    message = r"numbers.json: at second: .*valid number.*, got 'xxx.*\(and 1 more\)"
    with pytest.raises(JSONError, match=message) as caught:
        read_json(file, NUMBERS)
    assert len(str(caught.value)) < 300 + len(str(file))
    file.write_text("\ufeff" + '{"first": 1, "second": 2}', encoding="utf-8")  # as Windows saves it
    assert read_json(file, NUMBERS)["second"] == 2
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json", NUMBERS)
