"""Takes ``docs/images/report.png``: the top of a run's report and the words that make one answer unsure.

    python docs/_figures/report.py runs/demo

or ``make picture``, which makes that run where it is not there. It needs a Chromium. What the title says is what the
run's records say; fonts are those of the machine.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from probattn.inference.report import read_results, render_report

FILE = Path(__file__).parents[1] / "images" / "report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
SIZE, SCALE = (1200, 1580), 0.8
SHOWN = """<style>
nav, section:not(#attribution), #attribution .fine, #attribution .removed ~ .example ~ .example { display: none; }
main { padding-inline: 76px; }
section { padding-top: 24px; }
</style></head>"""
"""Leaves of the page its top and the first input of the section on attribution."""


def main(run: Path) -> None:
    """Shows the page of a run to a browser and keeps what it sees."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"expected one of the programs {', '.join(BROWSERS)}, found none")
    page = render_report(read_results(run / "metrics.json")).replace("</head>", SHOWN, 1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        file.write_text(page, encoding="utf-8")
        window = [
            f"--window-size={SIZE[0]},{SIZE[1]}",
            f"--force-device-scale-factor={SCALE}",
            "--hide-scrollbars",
        ]
        subprocess.run(
            [
                browser,
                *OPTIONS,
                f"--user-data-dir={folder}/browser",
                *window,
                f"--screenshot={FILE}",
                file.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))
