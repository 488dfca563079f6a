"""Writes ``ci.txt``, the tests that ``make test`` leaves to ``.ci/run``: ``python tests/ci.py JUNIT_FILE``."""

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).parent
LONGEST = 0.5
"""Mean seconds of a test's parameters up to which ``make test`` runs it."""
HERE_STAYS = ("tests/test_budget.py", "tests/test_documentation.py::test_examples_run")
"""Tests with a cache that the next would fill, and those that mark their own parameters."""


def main(file: str) -> None:
    """Reads the times and writes the names."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for case in ET.parse(file).getroot().iter("testcase"):
        folders, name = case.attrib["classname"].split("."), case.attrib["name"].partition("[")[0]
        seconds[f"{'/'.join(folders)}.py::{name}"].append(float(case.attrib["time"]))
    names = (name for name, times in seconds.items() if fmean(times) > LONGEST)
    listed = sorted(name for name in names if not name.startswith(HERE_STAYS))
    (HERE / "ci.txt").write_text("\n".join([*listed, ""]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
