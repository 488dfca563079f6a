"""Takes ``docs/images/report.png``: the top of a run's report, with the words for and against one answer.

    python docs/_figures/report.py runs/demo

or ``make picture``, which makes that run where it is not there. It needs a Chromium. What the title says is what the
run's records say; fonts are those of the machine.
"""

import sys
import tempfile
from pathlib import Path

from browser import picture

from probattn.report import read_results, render_report

FILE = Path(__file__).parents[1] / "images" / "report.png"
SHOWN = """<style>
nav, section:not(#words), #words .example:not([open]) { display: none; }
main { padding-inline: 76px; }
section { padding-top: 24px; }
</style></head>"""
"""Leaves of the page its top and the first input of the section on words."""


def main(run: Path) -> None:
    """Shows the page of a run to a browser and keeps what it sees."""
    page = render_report(read_results(run / "metrics.json")).replace("</head>", SHOWN, 1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        file.write_text(page, encoding="utf-8")
        picture(file, FILE, (1200, 1300), 0.8)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))
