"""What others rely on is still there: the golden lines that ``pins.py`` writes."""

import difflib

import pins
import pytest

PARTS = (pins.public_names, pins.command_line, pins.recipe_keys, pins.built_in_recipes)
COMMANDS = (
    "",
    *("train", "evaluate", "predict", "report", "agreement", "inspect", "demo"),
    *("recipes", "methods", "init", "check"),
)

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def texts(folder):
    """The recipes of the runs."""
    return pins.run_recipes(folder)


def refusal(name, lost):
    return f"golden/{name}.txt, {len(lost)} lines are not so: {'; '.join(lost[:20])}"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_nothing_is_missing(part):
    if part is pins.public_names:
        pytest.importorskip(pins.NEEDS["graph"], reason="needs torch-geometric (the extra 'graph')")
    lost = pins.missing(part.__name__, part())
    assert not lost, refusal(part.__name__, lost)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_into_eighty_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    result = pins.runs.invoke(*[command] * bool(command), "--help")
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.slow_but("texts", "translation")
@pytest.mark.parametrize("name", pins.RUNS)
def test_a_run_leaves_its_files(name, texts, folder):
    if name in pins.NEEDS:
        pytest.importorskip(pins.NEEDS[name], reason=f"needs {pins.NEEDS[name]}, of an extra")
    wanted = [line for line in pins.read("run_files") if line.startswith(f"{name} ")]
    found = set(pins.run_files(name, pins.make_run(name, texts[name], folder)))
    lost = [line for line in wanted if line not in found]
    assert wanted and not lost, refusal("run_files", lost)


@pytest.mark.parametrize("name", pins.RUNS)
def test_a_report_says_what_it_said(name, tmp_path):
    same_words(f"report_{name}", pins.report_text(name, tmp_path / "run"))


@pytest.mark.parametrize("name", pins.SEVERAL)
def test_a_report_of_several_runs_says_what_it_said(name, tmp_path):
    same_words(f"seeds_{name}", pins.seeds_text(name, tmp_path))


def same_words(name, lines):
    wanted, found = (" ".join(text).split() for text in (pins.read(name), lines))
    changes = [line for line in difflib.unified_diff(wanted, found, lineterm="", n=3) if line[0] != "@"]
    assert wanted == found, f"golden/{name}.txt: {' '.join(changes[2:200])}"
