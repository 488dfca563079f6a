"""Builds sdist and wheel of the last commit, twice, checks that both are equal and install, and signs their sums.

``SIGNING_KEY`` names an SSH key, private, or public with the private one in an agent. ``make dist`` runs this file.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
NAMESPACE = "file"
"""What ``ssh-keygen -Y`` calls the purpose of a signature."""
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)\s]+)\)")


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> bytes:
    """The output of a command; one that fails ends the program."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **variables}, stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        sys.exit(f"dist: {' '.join(map(str, command))} failed\n{done.stdout.decode(errors='replace')}")
    return done.stdout


def for_index(readme: str, source: str | None, version: str) -> str:
    """The README with links that a package index can follow: those of its own files are absolute, or become text."""

    def replaced(link: re.Match[str]) -> str:
        image, words, path = link.groups()
        if source is None:
            return "" if image else words
        return f"{image}[{words}]({source}/{'raw' if image else 'blob'}/v{version}/{path})"

    return LINK.sub(replaced, readme)


def build(folder: Path, seconds: str) -> list[Path]:
    """The sdist of the last commit and the wheel of that sdist."""
    source, output = folder / "source", folder / "dist"
    with tarfile.open(fileobj=BytesIO(run("git", "archive", "HEAD"))) as archive:
        archive.extractall(source, filter="tar")
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = source / project["readme"]
    text = for_index(
        readme.read_text(encoding="utf-8"), project.get("urls", {}).get("Source"), project["version"]
    )
    readme.write_text(text, encoding="utf-8")
    same = {"SOURCE_DATE_EPOCH": seconds, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    run(sys.executable, "-m", "build", "--outdir", output, source, **same)
    return sorted(output.iterdir())


def sums(files: list[Path]) -> str:
    """Lines of ``sha256sum``."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def check_wheel(wheel: Path, folder: Path) -> None:
    """Refuses a wheel that lacks files or has others, and one that does not install from the index and start."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.split("/")[0] for name in names}
    kinds = ("/py.typed", "/recipes/", "/templates/", "/licenses/LICENSE")
    lacking = [kind for kind in kinds if not any(kind in name for name in names)]
    if lacking or len(tops) != 2 or any("tests" in Path(name).parts for name in names):
        sys.exit(
            f"dist: expected one package with {', '.join(kinds)} and no tests, got {sorted(tops)} without {lacking}"
        )
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    requirement = f"{wheel}[cli]"
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        ROOT / "constraints.txt",
        requirement,
        cwd=folder,
    )
    run(folder / "bin" / "probattn", "--help", cwd=folder, PYTHONPATH="")
    run(python, "-c", "import probattn; probattn.convert", cwd=folder, PYTHONPATH="")


def main() -> None:
    """Leaves sdist, wheel, ``SHA256SUMS`` and, with a key, ``SHA256SUMS.sig`` in ``dist``."""
    if changes := run("git", "status", "--porcelain").decode():
        sys.exit(f"dist: expected a checkout without changes, which are not built, got\n{changes}")
    seconds = run("git", "log", "-1", "--format=%ct").decode().strip()
    with tempfile.TemporaryDirectory(prefix="probattn-dist.") as name:
        folder = Path(name)
        first, second = (build(folder / number, seconds) for number in ("first", "second"))
        listing = sums(first)
        if listing != sums(second):
            sys.exit(f"dist: expected two equal builds, got\n{listing}{sums(second)}")
        run(sys.executable, "-m", "twine", "check", "--strict", *first)
        check_wheel(next(file for file in first if file.suffix == ".whl"), folder / "venv")
        DIST.mkdir(exist_ok=True)
        for old in DIST.iterdir():
            old.unlink()
        for file in first:
            (DIST / file.name).write_bytes(file.read_bytes())
    listed = DIST / "SHA256SUMS"
    listed.write_text(listing, encoding="utf-8")
    sys.stdout.write(listing)
    key = os.environ.get("SIGNING_KEY")
    if not key:
        sys.stdout.write("not signed: set SIGNING_KEY to an SSH key, as ~/.ssh/id_ed25519\n")
        return
    run("ssh-keygen", "-Y", "sign", "-f", Path(key).expanduser(), "-n", NAMESPACE, listed)
    sys.stdout.write(f"signed: {listed.with_suffix('.sig')}\n")


if __name__ == "__main__":
    main()
