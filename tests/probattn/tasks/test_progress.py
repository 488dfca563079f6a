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


@pytest.mark.parametrize("installed", [True, False])
def test_long_work_says_how_long_it_takes_where_there_is_no_terminal(monkeypatch, capsys, installed):
    seconds = 0.0
    monkeypatch.setattr("probattn.terminal.time.monotonic", lambda: seconds)
    monkeypatch.setattr("probattn.tasks.progress.find_spec", lambda _: installed or None)
    with shown():
        for _ in tracked(iter(range(30)), "words", 30):
            seconds += 4
        for _ in tracked(iter(range(3)), "rows of a stream"):
            seconds += 4
    assert capsys.readouterr().err.splitlines() == [
        "words ...",
        "words: 3 of 30, 1.8 minutes left",
        "words: 6 of 30, 1.6 minutes left",
        "words: 12 of 30, 72 seconds left",
        "words: 24 of 30, 24 seconds left",
        "rows of a stream ...",
        "rows of a stream: 3",
    ]


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
