"""Checks of options: what passes, and what the error says."""

import math
from functools import partial
from typing import Literal

import pytest

from probattn.checks import check_choice, check_instance, check_integer, check_number, check_share, shortened

POSITIVE = partial(check_number, "Options", "rate", positive=True)
WEIGHT = partial(check_number, "Options", "rate", positive=False)
OPEN = partial(check_share, "Options", "rate", zero=False, one=False)
HALF_OPEN = partial(check_share, "Options", "rate", one=False)
SHARE = partial(check_share, "Options", "rate")
COUNT = partial(check_integer, "Options", "rate", minimum=2)


@pytest.mark.parametrize(
    ("check", "good", "bad", "message"),
    [
        (POSITIVE, (1, 0.5, 1e-300), (0, -1), "expected a number > 0, got {}"),
        (WEIGHT, (0, 0.0, 3), (-0.1,), "expected a number >= 0, got {}"),
        (POSITIVE, (), (math.inf, math.nan, True, "1", None), "expected a finite number > 0, got {!r}"),
        (WEIGHT, (), (-math.inf, [1]), "expected a finite number >= 0, got {!r}"),
        (SHARE, (0, 1, 0.5), (-0.1, 1.1, math.nan, True, "1"), "expected a number in [0, 1], got {!r}"),
        (HALF_OPEN, (0, 0.999), (1, 1.0), "expected a number in [0, 1), got {!r}"),
        (OPEN, (0.001, 0.999), (0, 1), "expected a number in (0, 1), got {!r}"),
        (COUNT, (2, 10**30), (1, 2.0, True, "2", None), "expected an integer >= 2, got {!r}"),
        (
            partial(check_choice, "Options", "rate", choices=Literal["a", "b"]),
            ("a", "b"),
            ("c", None),
            "expected one of 'a', 'b', got {!r}",
        ),
    ],
)
def test_checks(check, good, bad, message):
    for value in good:
        check(value)
    for value in bad:
        with pytest.raises(ValueError) as caught:
            check(value)
        assert str(caught.value) == "Options.rate: " + message.format(value)


def test_kinds():
    check_instance("f", "places", (1,), tuple, "a tuple")
    for value, got in (([1], "<class 'list'>"), ("1", "'1'")):
        with pytest.raises(TypeError) as error:
            check_instance("f", "places", value, tuple, "a tuple")
        assert str(error.value) == f"f.places: expected a tuple, got {got}"


def test_texts_are_shortened_in_the_middle_and_on_one_line():
    assert shortened("a value\nof two lines") == "a value of two lines"
    assert shortened("0123456789" * 4, limit=16) == "012345678...6789"
