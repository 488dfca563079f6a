"""Takes ``docs/images/decisions.png``, the top of the demo's triage report, and the pictures of the gallery.

    python docs/_figures/report.py runs/demo
    python docs/_figures/report.py triage=runs/reviews/triage.html experiment=runs/permutations/report.html ...

``make picture`` makes the run of the first where it is not there: its picture has the words for and against one label.
NAME=PAGE makes ``docs/images/gallery_NAME.png`` of the top of a page; the page on the gallery has the commands that
make the runs. It needs a Chromium; fonts are those of the machine.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "images"
SHOWN = """<style>
nav, section:not(#promises, #words), #words .example:not([open]), figure { display: none; }
main { padding-inline: 76px; }
section { padding-top: 24px; }
</style></head>"""
"""Leaves of the page its top, the table and the first input of the section on words."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--hide-scrollbars", "--force-device-scale-factor=0.8"),
)


def picture(page: str, file: Path, size: str) -> None:
    """Shows the top of a page, of a size in CSS pixels, and keeps what is seen."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"expected one of the programs {', '.join(BROWSERS)}, found none")
    with tempfile.TemporaryDirectory() as profile:
        shown = Path(profile) / "page.html"
        shown.write_text(page, encoding="utf-8")
        command = [
            browser,
            *OPTIONS,
            f"--window-size={size}",
            f"--user-data-dir={profile}",
            f"--screenshot={file}",
        ]
        subprocess.run([*command, shown.as_uri()], check=True, capture_output=True)


def main(words: list[str]) -> None:
    """Takes a picture of each page, or that of a run."""
    for word in words:
        name, _, page = word.partition("=")
        if page:
            picture(Path(page).read_text("utf-8"), IMAGES / f"gallery_{name}.png", "1100,1000")
        else:
            report = (Path(name) / "triage.html").read_text("utf-8")
            picture(report.replace("</head>", SHOWN, 1), IMAGES / "decisions.png", "1200,1720")


if __name__ == "__main__":
    main(sys.argv[1:] or ["runs/demo"])
