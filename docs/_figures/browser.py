"""Pictures of pages, taken by a Chromium."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--hide-scrollbars"),
)


def picture(page: Path, file: Path, size: tuple[int, int], scale: float) -> None:
    """Shows the top of a page, of a size in CSS pixels, and keeps what is seen."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"expected one of the programs {', '.join(BROWSERS)}, found none")
    with tempfile.TemporaryDirectory() as profile:
        window = [f"--window-size={size[0]},{size[1]}", f"--force-device-scale-factor={scale}"]
        command = [browser, *OPTIONS, *window, f"--user-data-dir={profile}", f"--screenshot={file}"]
        subprocess.run([*command, page.resolve().as_uri()], check=True, capture_output=True)
