"""Takes pictures of reports for the gallery: ``docs/images/gallery_NAME.png``, the top of each page.

    python docs/_figures/gallery.py triage=runs/reviews/triage.html experiment=runs/permutations/report.html ...

The page on the gallery has the commands that make the runs. It needs a Chromium; fonts are those of the machine.
"""

import shutil
import subprocess
import sys
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
SIZE, SCALE = (1100, 1000), 0.8


def main(pages: list[str]) -> None:
    """Shows each page to a browser and keeps what it sees."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"expected one of the programs {', '.join(BROWSERS)}, found none")
    for name, _, page in (each.partition("=") for each in pages):
        window = [f"--window-size={SIZE[0]},{SIZE[1]}", f"--force-device-scale-factor={SCALE}"]
        shot = f"--screenshot={IMAGES / f'gallery_{name}.png'}"
        command = [browser, *OPTIONS, *window, shot, Path(page).resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main(sys.argv[1:])
