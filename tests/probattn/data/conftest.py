"""Built-in data sets that are read once for all the tests."""

from dataclasses import replace

import pytest

from probattn.data import BUILT_IN, BuiltIn


@pytest.fixture(scope="session")
def read_once() -> dict[str, BuiltIn]:
    examples = {name: BUILT_IN[name].examples() for name in ("rotten_tomatoes", "imdb", "bbc_news")}
    return {
        name: replace(
            item, examples=(lambda name=name: examples[name]) if name in examples else item.examples
        )
        for name, item in BUILT_IN.items()
    }


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process that has not been warned of truncated texts."""
    monkeypatch.setattr("probattn.data.errors.TOLD", {})


@pytest.fixture
def built_in(read_once: dict[str, BuiltIn], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probattn.data.sources.BUILT_IN", read_once)
