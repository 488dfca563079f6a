"""The tables of families, from verdicts that are known."""

import pytest


@pytest.fixture
def families(load):
    return load("measured_tables.families")


def one(name, family, verdict, reason="", kinds=()):
    return {"name": name, "family": family, "verdict": verdict, "reason": reason, "kinds": list(kinds)}


CONTENT = {
    "transformers": "5.23.0",
    "classes": [
        one("AModel", "a", "equal", kinds=("causal", "self")),
        one("AForTask", "a", "equal", kinds=("causal", "self")),
        one("BModel", "b", "equal", kinds=("self",)),
        one("BForTask", "b", "refused", "BForTask: it |is| `more`"),
        one("CModel", "c", "not built", "ImportError: timm"),
    ],
}


def test_classes_are_counted_and_listed_by_family(families):
    assert families.tables(CONTENT).split("\n\n") == [
        "transformers 5.23.0: 5 model classes of 3 families.",
        (
            "| verdict | meaning | classes | families with such classes |\n| --- | --- | --- | --- |\n"
            "| equal | the converted network equals the original | 3 | 2 |\n"
            "| refused | refused with an error; the network is unchanged | 1 | 1 |\n"
            "| wrong | the converted network differs from the original | 0 | 0 |\n"
            "| not built | no tiny network of the class could be built | 1 | 1 |"
        ),
        "**equal**: the converted network equals the original.",
        (
            "| family | classes | attention |\n| --- | --- | --- |\n"
            "| a | AModel, AForTask | causal, self |\n| b | BModel | self |"
        ),
        "**refused**: refused with an error; the network is unchanged.",
        "| family | classes | reason |\n| --- | --- | --- |\n| b | BForTask | `it /is/ more` |",
        "**not built**: no tiny network of the class could be built.",
        "| family | classes | reason |\n| --- | --- | --- |\n| c | CModel | `ImportError: timm` |",
    ]


def test_a_file_without_verdicts_has_no_table(families):
    with pytest.raises(KeyError, match="classes"):
        families.tables({"transformers": "5.23.0"})
