"""The list of tests that ``make test`` leaves to ``.ci/run``."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TIMES = """<testsuites><testsuite>
<testcase classname="tests.one.test_x" name="test_long[a]" time="1.2"/>
<testcase classname="tests.one.test_x" name="test_long[b]" time="0.4"/>
<testcase classname="tests.one.test_x" name="test_short" time="0.4"/>
<testcase classname="tests.test_documentation" name="test_examples_run[a]" time="9"/>
<testcase classname="probattn.a" name="probattn.a.f" time="0.8"/>
</testsuite></testsuites>"""

TESTS = """import pytest
@pytest.mark.slow_but("1")
@pytest.mark.parametrize("number", [1, 2])
def test_long(number): pass
def test_short(): pass
"""


def test_a_file_of_times_gives_the_list(tmp_path: Path) -> None:
    (tmp_path / "times.xml").write_text(TIMES, encoding="utf-8")
    shutil.copy(HERE / "ci.py", tmp_path)
    runpy.run_path(str(tmp_path / "ci.py"))["main"](str(tmp_path / "times.xml"))
    listed = (tmp_path / "ci.txt").read_text(encoding="utf-8").split()
    assert listed == ["probattn/a.py::probattn.a.f", "tests/one/test_x.py::test_long"]


def test_listed_tests_are_left_to_ci_and_unknown_names_refused(tmp_path: Path) -> None:
    conftest = (HERE / "conftest.py").read_text(encoding="utf-8")
    hook = conftest[conftest.index("IN_CI =") : conftest.index("LEFT_OUT =")]
    (tmp_path / "conftest.py").write_text(
        f"import pytest\nfrom pathlib import Path\n{hook}", encoding="utf-8"
    )
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    slow\n    slow_but\n    ci\n", encoding="utf-8"
    )
    (tmp_path / "test_x.py").write_text(TESTS, encoding="utf-8")

    def run(listed: str, *options: str) -> str:
        (tmp_path / "ci.txt").write_text(listed, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert "1 passed, 2 deselected" in run("test_x.py::test_long", "-m", "not slow")
    assert "1 passed, 2 deselected" in run("test_x.py::test_long", "-m", "ci")
    refused = run("test_x.py::test_gone test_y.py::test_z")
    assert "tests/ci.txt: expected names of tests, got others: test_x.py::test_gone\n" in refused
