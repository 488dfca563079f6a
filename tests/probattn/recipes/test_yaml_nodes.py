from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from probattn.recipes import RecipeError
from probattn.tasks.sections.yaml_nodes import RecipeDumper, parse, parse_value

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12) | st.sampled_from(
    [
        "no",
        "yes",
        "on",
        "null",
        "~",
        "2e-5",
        "1_000",
        "012",
        "1:30",
        "0x1F",
        "2020-01-01",
        "<<",
        "=",
        "true",
        ".5",
        "",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=4), st.booleans())
def test_what_is_written_is_read_back_and_by_other_readers_too(value: dict[str, Any], flow: bool) -> None:
    text = yaml.dump(value, Dumper=RecipeDumper, allow_unicode=True, default_flow_style=flow)
    assert parse(text, "here")[0] == value
    assert yaml.safe_load(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("-3", -3),
        ("012", 12),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("1_000", "1_000"),
        ("true", True),
        ("null", None),
        ("", None),
        ("[1, 2e-1, no]", [1, 0.2, "no"]),
        ("{0: a, no: b}", {"0": "a", "no": "b"}),
        ("hub:owner/name", "hub:owner/name"),
        ("'2e-5'", "2e-5"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_every_key_has_its_line() -> None:
    text = "# a comment\na:\n  b: 1\n\n  c: {d: 2, e: 3}\nf:\n  - g: 4\n"
    assert parse(text, "here")[1] == {
        ("a",): "line 2",
        ("a", "b"): "line 3",
        ("a", "c"): "line 5",
        ("a", "c", "d"): "line 5",
        ("a", "c", "e"): "line 5",
        ("f",): "line 6",
        ("f", 0, "g"): "line 7",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: c: d\n", "here: not valid YAML (line 2, column 5): mapping values are not allowed here"),
        (
            "a: [1, 2\nb: 3\n",
            "here: not valid YAML (line 2, column 2): while parsing a flow sequence, expected ',' or ']', but got ':'",
        ),
        (
            "a:\n\tb: 1\n",
            (
                "here: not valid YAML (line 2, column 1): while scanning for the next token, found character '\\t' "
                "that cannot start any token"
            ),
        ),
        ("a: &x 1\nb: *x\n", "here: not valid YAML (line 2, column 4): aliases (*x) are not used in recipes"),
        (
            "a: !!python/object:os.system {}\n",
            (
                "here: not valid YAML (line 1, column 4): tags (tag:yaml.org,2002:python/object:os.system) "
                "are not used in recipes"
            ),
        ),
        (
            "a: 1\n---\nb: 2\n",
            "here: not valid YAML (line 2, column 1): expected a single document in the stream, but ",
        ),
        ("a: 1\nb: 2\na: 3\n", "here: key 'a' stands twice: line 1 and line 3"),
        ("a:\n  b: 1\n  b: 2\n", "here: key 'b' stands twice: line 2 and line 3"),
        ("? [a]\n: 1\n", "here: expected a name as key (line 1), got a list or mapping"),
        ("- a\n- b\n", "here: expected keys and values (line 1), got no mapping"),
        ("# only a comment\n", "here: expected keys and values, got none"),
        ("a: \x07\n", "here: not valid YAML (line 1): a character U+0007 that is not allowed"),
        (f"a: {'1' * 5000}\n", "here: not valid YAML (line 1, column 4): a number of too many digits"),
        ("a: " + "[" * 1500, "here: expected a recipe, got hundreds of levels"),
    ],
)
def test_what_is_no_recipe_gets_its_line(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(text, "here")
    said = str(caught.value)
    assert said.startswith(message)
    assert "\n" not in said


def test_an_override_is_one_value() -> None:
    with pytest.raises(RecipeError, match="expected one value, got several lines"):
        parse_value("1\nother: 2")


@pytest.mark.parametrize(
    ("scalar", "words"),
    [
        ("!!float abc", "expected a value of the tag !!float, got 'abc'"),
        ("!!float ''", "expected a value of the tag !!float, got ''"),
        ("!!bool maybe", "expected a value of the tag !!bool, got 'maybe'"),
        ('!!bool "true\\n"', "expected a value of the tag !!bool"),
        ("!!int 1.5", "expected a value of the tag !!int, got '1.5'"),
        ("!!null x", "expected a value of the tag !!null, got 'x'"),
        ("!!float " + "a" * 5000, "expected a value of the tag !!float, got 'aaa"),
        (r'"a\0b"', "a character U+0000 that is not allowed"),
        (r'"\ud800"', "a character U+D800 that is not allowed"),
        (r'{"a\0b": 1}', "a character U+0000 that is not allowed"),
    ],
)
def test_tags_that_do_not_fit_and_characters_of_no_file_are_refused(scalar: str, words: str) -> None:
    for read in (lambda: parse(f"first: 1\nkey: {scalar}\n", "example"), lambda: parse_value(scalar)):
        with pytest.raises(RecipeError) as caught:
            read()
        assert words in str(caught.value) and "not valid YAML (line " in str(caught.value)
        assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("scalar", "value"),
    [("!!float 1", 1.0), ("!!str 3", "3"), ("!!bool true", True), ("!!int 7", 7), ("!!null ~", None)],
)
def test_tags_that_fit_are_read(scalar: str, value: object) -> None:
    assert parse_value(scalar) == value
