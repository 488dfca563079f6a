"""Manifests: a changed file is noticed and named, whatever the manifest itself holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probattn.files import manifest
from probattn.files.durable import FileDigest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "weights").write_bytes(bytes(range(64)))
    (tmp_path / "deep" / "config.json").write_text("{}")
    manifest.write_manifest(tmp_path)
    return tmp_path


def test_an_untouched_folder_passes_and_so_does_one_with_a_further_file(folder: Path) -> None:
    assert sorted(manifest.verify_manifest(folder).files) == ["deep/config.json", "weights"]
    (folder / "notes.txt").write_text("mine")
    manifest.verify_folder(folder)
    manifest.write_manifest(folder)  # in place of the other
    assert sorted(manifest.verify_manifest(folder).files) == ["deep/config.json", "notes.txt", "weights"]


def test_files_written_later_are_added_and_those_changed_since_are_read_again(folder: Path) -> None:
    earlier = manifest.verify_manifest(folder).files
    (folder / "notes.txt").write_text("mine")
    (folder / "deep" / "config.json").write_text("[]")
    manifest.extend_manifest(folder)
    files = manifest.verify_manifest(folder).files
    assert sorted(files) == ["deep/config.json", "notes.txt", "weights"]
    assert files["weights"] == earlier["weights"] and files["deep/config.json"] != earlier["deep/config.json"]
    (folder / "manifest.json").unlink()
    manifest.extend_manifest(folder, without=("notes.txt",))
    assert sorted(manifest.verify_manifest(folder).files) == ["deep/config.json", "weights"]


@pytest.mark.parametrize("place", range(0, 64, 9))
@pytest.mark.parametrize("bit", [0, 7])
def test_every_flipped_bit_is_noticed(folder: Path, place: int, bit: int) -> None:
    data = bytearray((folder / "weights").read_bytes())
    data[place] ^= 1 << bit
    (folder / "weights").write_bytes(data)
    with pytest.raises(manifest.DamagedFolderError, match="the content of weights has changed"):
        manifest.verify_folder(folder)


def test_what_is_missing_or_of_another_size_is_named(folder: Path) -> None:
    (folder / "weights").write_bytes(b"1")
    with pytest.raises(manifest.DamagedFolderError, match="weights has 1 bytes, expected 64"):
        manifest.verify_folder(folder)
    (folder / "weights").unlink()
    with pytest.raises(manifest.DamagedFolderError, match="weights is missing"):
        manifest.verify_folder(folder)
    (folder / "weights").mkdir()
    with pytest.raises(manifest.DamagedFolderError, match="weights is missing"):
        manifest.verify_folder(folder)


def test_a_folder_of_an_earlier_version_has_none(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "weights").write_bytes(b"1")
    manifest.verify_folder(folder)
    with pytest.raises(manifest.DamagedFolderError, match=r"no readable manifest.json"):
        manifest.verify_manifest(folder)


ENTRY = {"size": 1, "sha256": "0"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        '{"format": 1}',
        '{"format": 1, "files": []}',
        '{"format": 1, "files": {"weights": {}}}',
        '{"format": 1, "files": {"weights": {"size": 64}}}',
        '{"format": 1, "files": {"weights": null}}',
        '{"format": 1, "files": {"weights": {"size": "many", "sha256": 3}}}',
        '{"format": true, "files": {}}',
        '{"format": 1, "step": -1, "files": {}}',
        "[" * 100_000,
        '{"format": ' + "9" * 5000 + "}",
        json.dumps({"format": 1, "files": {"a\0b": ENTRY}}),
        json.dumps({"format": 1, "files": {"x" * 5000: ENTRY}}),
        json.dumps({"format": 1, "files": {"../../dev/zero": ENTRY}}),
        b"\xff\xfe",
    ],
)
def test_no_content_of_the_manifest_raises_anything_else(folder: Path, content: str | bytes) -> None:
    (folder / "manifest.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(manifest.DamagedFolderError):
        manifest.verify_folder(folder)


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "deep/../../secret", "..\\secret", "C:/secret", "C:secret", "", ".", "a\0b"],
)
def test_names_outside_the_folder_are_refused_unread(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("secret")
    manifest.write_manifest(folder, {name: FileDigest(1, "0")})
    with pytest.raises(manifest.DamagedFolderError, match="expected names of files in its folder") as problem:
        manifest.verify_manifest(folder)
    assert "bytes" not in str(problem.value)
