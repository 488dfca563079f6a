"""A few inputs of each area of the fuzz; ``python tests/fuzz/fuzz.py`` tries thousands."""

import time

import pytest
from areas import LostError
from fuzz import AREAS, fuzz, table

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A folder in which the runs are made once."""
    return tmp_path_factory.mktemp("areas")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("recipes", 40),
        ("networks", 20),
        pytest.param("policies", 12, marks=pytest.mark.slow),
        pytest.param("files", 20, marks=pytest.mark.slow),
        pytest.param("runs", 8, marks=pytest.mark.slow),
        pytest.param("results", 14, marks=pytest.mark.slow),
    ],
)
def test_no_input_is_lost(name, count, scratch, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tally = fuzz(AREAS[name](scratch), count, seed=20_000, limit=60.0)
    assert not tally.lost, table({name: tally})
    assert tally.tried == count == tally.accepted + tally.refused
    assert tally.accepted and tally.refused


class Broken:
    """An area whose inputs are lost in every way."""

    name = "broken"

    def attempt(self, draw, place):
        (place / "input").write_text("x")
        kind = draw.randrange(3)
        if kind == 0:
            raise LostError("a traceback", "what was done\nand where")
        while kind == 1:
            time.sleep(1)
        return True


def test_what_is_lost_is_counted_named_and_kept(tmp_path):
    tally = fuzz(Broken(), 8, seed=0, limit=0.2, keep=tmp_path)
    assert tally.tried == 8 and set(tally.lost) == {"a traceback", "hang"}
    assert tally.failures + tally.accepted == 8
    assert "what was done" in table({"broken": tally})
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 2 and all((folder / "input").read_text() == "x" for folder in kept)
    again = fuzz(Broken(), 8, seed=0, limit=0.2)
    assert again.lost.keys() == tally.lost.keys() and again.failures == tally.failures
