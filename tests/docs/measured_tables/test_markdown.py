"""What all tables are written with."""

import pytest


@pytest.fixture
def markdown(load):
    return load("measured_tables.markdown")


def test_a_table_has_a_line_below_its_head(markdown):
    assert markdown.table(["", "b"], [["1", "2"]]) == "|  | b |\n| --- | --- |\n| 1 | 2 |"


def test_many_columns_become_rows(markdown):
    head, row = [f"c{number}" for number in range(9)], list("abcdefghi")
    turned = markdown.narrow(head, [row]).splitlines()
    assert turned[:3] == ["| c0 | a |", "| --- | --- |", "| c1 | b |"] and len(turned) == 10
    assert markdown.narrow(head[:8], [row[:8]]) == markdown.table(head[:8], [row[:8]])
    assert markdown.narrow(head, [row] * 9) == markdown.table(head, [row] * 9)


def test_an_interval_is_a_mean_and_its_bounds(markdown):
    found = {"mean": 0.015, "low": -0.01, "high": 0.04}
    assert markdown.interval(found, "+.1f", scale=100) == "+1.5 [-1.0, +4.0]"
    assert markdown.interval(found, ".3g", strong=True) == "**0.015** [-0.01, 0.04]"
    assert markdown.interval({"mean": 1.0, "low": None, "high": None}, "+.2f") == "+1.00"
    assert markdown.interval(None, "+.2f") == ""
