"""Options that are checked by their annotations."""

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, asdict, dataclass, replace
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Lt

from probattn.options import (
    RECIPE,
    Count,
    Natural,
    NonNegative,
    Options,
    Positive,
    Share,
    SomeOf,
    descriptions,
    expected,
)


@dataclass(frozen=True)
class Base(Options):
    """What others build on.

    Args:
        kind: "first", or
            "second", see :class:`probattn.options.Options` and :func:`~a.b.c`.
        seed: of it: >= 0.

    Example:
        >>> Base().kind
        'first'
    """

    kind: Literal["first", "second"] = "first"
    seed: Annotated[Natural, Lt(8)] = 0


@dataclass(frozen=True)
class Example(Base):
    """One field of every sort.

    Args:
        flag: a switch.
        seed: otherwise.
    """

    flag: bool = True
    number: float = 0.0
    positive: Positive = 1.0
    weight: NonNegative = 1.0
    share: Share = 0.5
    count: Count | None = None
    prior: Literal["uniform"] | Positive = "uniform"
    layers: Literal["all"] | SomeOf[int] | None = None
    names: Mapping[str, float] | None = None
    values: Sequence[float] = ()
    hooks: Sequence[Callable[[int], None]] = ()
    notes: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "second" and self.flag:
            raise ValueError("Example: flag belongs to 'first'")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "third"}, "kind: expected one of 'first', 'second', got 'third'"),
        ({"kind": ["first"]}, "kind: expected one of 'first', 'second', got ['first']"),
        ({"seed": -1}, "seed: expected an integer in [0, 8), got -1"),
        ({"seed": True}, "seed: expected an integer in [0, 8), got True"),
        ({"seed": 1.0}, "seed: expected an integer in [0, 8), got 1.0"),
        ({"flag": 1}, "flag: expected True or False, got 1"),
        ({"number": "1"}, "number: expected a number, got '1'"),
        ({"number": True}, "number: expected a number, got True"),
        ({"number": float("nan")}, "number: expected a finite number, got nan"),
        ({"positive": 0}, "positive: expected a number > 0, got 0"),
        ({"positive": float("inf")}, "positive: expected a finite number > 0, got inf"),
        ({"weight": -0.5}, "weight: expected a number >= 0, got -0.5"),
        ({"count": 0}, "count: expected an integer >= 1 or None, got 0"),
        ({"prior": "normal"}, "prior: expected 'uniform' or a number > 0, got 'normal'"),
        ({"prior": float("inf")}, "prior: expected 'uniform' or a finite number > 0, got inf"),
        ({"layers": "some"}, "layers: expected 'all', one or more integers or None, got 'some'"),
        ({"layers": []}, "layers: expected 'all', one or more integers or None, got []"),
        ({"layers": [0.5]}, "layers: expected 'all', one or more integers or None, got [0.5]"),
        ({"names": {"a": "b"}}, "names: expected a mapping of names to a number or None, got {'a': 'b'}"),
        ({"values": [1, "x"]}, "values: expected numbers, got [1, 'x']"),
        ({"hooks": [1]}, "hooks: expected functions, got [1]"),
        ({"notes": 1}, "notes: expected a mapping of names to anything or None, got 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Example(**options)
    assert str(caught.value) == f"Example.{message}"


def test_the_first_of_several_is_named_and_long_values_are_shortened() -> None:
    with pytest.raises(ValueError, match=r"^Example\.seed: expected .*, got 'x{50}") as caught:
        Example(seed="x" * 5000, weight=-1)
    assert len(str(caught.value)) < 150


def test_rules_between_fields_come_after_those_of_each() -> None:
    with pytest.raises(ValueError, match=r"^Example: flag belongs to 'first'$"):
        Example("second")
    with pytest.raises(ValueError, match=r"^Example\.flag"):
        Example("second", flag=1)
    assert Example("second", flag=False).kind == "second"


def test_options_are_dataclasses_as_others_are() -> None:
    made = Example("first", 3, weight=2, layers=[0, 1], names={"a": 1}, values=[1.0])
    assert made == Example(seed=3, weight=2.0, layers=(0, 1), names={"a": 1.0}, values=(1.0,))
    assert isinstance(made.weight, float) and made.layers == (0, 1)
    plain = replace(made, names=None)
    assert len({plain, replace(plain, layers=[0, 1])}) == 1
    assert pickle.loads(pickle.dumps(plain)) == copy.deepcopy(plain) == plain
    assert asdict(plain)["layers"] == (0, 1) and repr(plain).startswith("Example(kind='first', seed=3, ")
    with pytest.raises(FrozenInstanceError):
        plain.seed = 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'sede'"):
        Example(sede=1)
    with pytest.raises(ValueError, match=r"^Example\.weight"):
        replace(plain, weight=-1)


def test_docstrings_describe_options() -> None:
    found = descriptions(Example)
    assert found["kind"] == "`first`, or `second`, see `probattn.options.Options` and `c`."
    assert found["flag"] == "A switch." and found["seed"] == "Otherwise."
    assert descriptions(Base)["seed"] == "Of it: >= 0."


def test_a_recipe_has_words_of_its_own() -> None:
    assert expected(bool, vocabulary=RECIPE) == "true or false"
    assert expected(Count | None, vocabulary=RECIPE) == "a whole number >= 1 or null"
    assert expected(Literal["a", "b"], vocabulary=RECIPE) == "'a' or 'b'"
    with pytest.raises(TypeError, match="no words for"):
        expected(TypeError("x"))
