"""What the page of families says holds for the installed transformers."""

import json

import every_family
import pytest
import transformers

STORED = json.loads(every_family.FILE.read_text(encoding="utf-8"))
VERDICTS = {each["name"]: each for each in STORED["classes"]}
SAME = STORED["transformers"] == transformers.__version__
EVERY = 80
"""Of so many families one is judged in each run; another test judges all."""


@pytest.fixture(autouse=True)
def quiet():
    """Networks made of configurations alone warn of much that does not matter here."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def wrong(classes):
    """Classes whose verdict is not the stored one, or under another transformers wrong."""
    found = {cls.__name__: every_family.judge(cls) for cls in classes}
    assert found
    return {
        name: (each["verdict"], each["reason"])
        for name, each in found.items()
        if (SAME and any(each[key] != VERDICTS[name][key] for key in ("verdict", "kinds")))
        or each["verdict"] == "wrong"
    }


def test_the_table_knows_no_wrong_class():
    assert not [name for name, each in VERDICTS.items() if each["verdict"] == "wrong"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_some_families_are_as_the_table_says():
    chosen = sorted({each["family"] for each in STORED["classes"]})[::EVERY]
    assert not wrong(cls for cls in every_family.model_classes(set(chosen)))


@pytest.mark.minutes
@pytest.mark.filterwarnings("ignore")
def test_every_class_is_as_the_table_says():
    classes = list(every_family.model_classes())
    assert not SAME or {cls.__name__ for cls in classes} == VERDICTS.keys()
    assert not wrong(classes)
