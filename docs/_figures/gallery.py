"""Takes pictures of reports for the gallery: ``docs/images/gallery_NAME.png``, the top of each page.

    python docs/_figures/gallery.py triage=runs/reviews/triage.html experiment=runs/permutations/report.html ...

The page on the gallery has the commands that make the runs. It needs a Chromium; fonts are those of the machine.
"""

import sys
from pathlib import Path

from browser import picture

IMAGES = Path(__file__).parents[1] / "images"


def main(pages: list[str]) -> None:
    """Takes a picture of each page."""
    for name, _, page in (each.partition("=") for each in pages):
        picture(Path(page), IMAGES / f"gallery_{name}.png", (1100, 1000), 0.8)


if __name__ == "__main__":
    main(sys.argv[1:])
