"""Progress: bars on a terminal, lines elsewhere, nothing unasked."""

import io

import pytest
from rich.console import Console

from probattn.tasks.progress import counting, note, shown, tracked


def console(*, terminal, width=80):
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=width, color_system=None, legacy_windows=False
    )


def test_nothing_is_shown_unasked(capsys):
    assert list(tracked(iter("abc"), "letters")) == ["a", "b", "c"]
    with shown(quiet=True):
        note("a word")
        assert list(tracked("abc", "letters")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_a_line_where_there_is_no_terminal():
    place = console(terminal=False)
    with shown(console=place):
        note("two of them are left out")
        assert list(tracked([1, 2], "numbers [red]1[/red]")) == [1, 2]
    assert place.file.getvalue() == "note: two of them are left out\nnumbers [red]1[/red] ...\n"


@pytest.mark.parametrize("width", [80, 120])
def test_bars_on_a_terminal(width):
    place = console(terminal=True, width=width)
    with shown(console=place):
        for _ in tracked([1, 2], "deterministic attention: predictions of IMDB"):
            pass
        with counting("Bayesian attention: accuracy without each head", 3) as done:
            done()
            next(tracked([0], "another"))
    seen = place.file.getvalue()
    for words in ("2/2", "1/3", "0/1", "deterministic attention: predictions of IMDB", "without each head"):
        assert words in seen


def test_a_quiet_block_inside_shows_nothing():
    place = console(terminal=False)
    with shown(console=place):
        for _ in tracked([1, 2], "outer"):
            with shown(quiet=True):
                note("within")
                assert list(tracked([3], "inner")) == [3]
        note("after")
    assert place.file.getvalue() == "outer ...\nnote: after\n"
