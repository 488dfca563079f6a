"""The page on the data says what the code has."""

import re
from pathlib import Path

import pytest

from probattn.data import BUILT_IN, ROLES, SPLITS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "concepts" / "data.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|")
]


def rows_of(name: str) -> list[list[str]]:
    return [row for row in ROWS if row[0] == f"`{name}`"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_data_set_has_its_source_and_terms(name: str) -> None:
    where, terms = rows_of(name)
    origin = BUILT_IN[name].distribution
    assert where[-1] == (f"package `{origin}`" if origin else "folder `PROBATTN_DATA`")
    assert terms[2] == BUILT_IN[name].licence
    assert terms[1] in BUILT_IN[name].about


@pytest.mark.parametrize("name", ["rotten_tomatoes", "bbc_news"])
def test_sizes_are_those_of_the_data(name: str) -> None:
    examples = BUILT_IN[name].examples()
    assert rows_of(name)[0][2:5] == [f"{len(examples[split]):,}" for split in SPLITS]


def test_every_role_is_described() -> None:
    described = [row[0].strip("`") for row in ROWS if re.fullmatch(r"`\w+`", row[0]) and len(row) == 3]
    assert [name for name in described if name not in BUILT_IN] == list(ROLES)
