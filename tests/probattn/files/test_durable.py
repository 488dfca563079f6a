"""Durable writing: digests, atomic replacement, and the system's own errors."""

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from probattn.files import durable
from probattn.files.durable import (
    explain_os_error,
    file_sha256,
    publish_folder,
    write_atomically,
    write_digested,
    write_tensors,
)


def test_size_and_digest_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "part.pt"
    found = write_digested(path, lambda file: torch.save({"w": torch.randn(300, 300)}, file))
    content = path.read_bytes()
    assert (found.size, found.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert file_sha256(path) == found.sha256


def test_the_systems_error_is_not_hidden_by_torchs_own(tmp_path, monkeypatch) -> None:
    fail_after(monkeypatch, 1000)
    with pytest.raises(OSError, match="No space left") as caught:
        write_digested(tmp_path / "part.pt", lambda file: torch.save({"w": torch.randn(300, 300)}, file))
    assert caught.value.errno == errno.ENOSPC


def test_errors_that_are_not_the_systems_pass(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write_digested(tmp_path / "part", fail)


def test_replacing_leaves_one_file_with_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in (b"old", b"new"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_replacement_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, b"old")
    fail_after(monkeypatch, 1)
    with pytest.raises(OSError, match=f"writing {path}: the disk is full"):
        write_atomically(path, b"new content")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_other_errors_keep_their_own_words() -> None:
    error = explain_os_error(PermissionError(errno.EACCES, "Permission denied"), "writing x")
    assert isinstance(error, PermissionError)
    assert "writing x: Permission denied; expected a path that this user may read and write" in str(error)


def fail_after(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A disk with room for so many bytes in each file."""
    write = durable.DigestingFile.write

    def limited(self: durable.DigestingFile, data: Any) -> int:
        if self.size + memoryview(data).nbytes > room:
            self.error = OSError(errno.ENOSPC, "No space left on device")
            raise self.error
        return write(self, data)

    monkeypatch.setattr(durable.DigestingFile, "write", limited)


def test_tensors_are_as_readable_as_a_text_beside_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / "weights.safetensors", {"w": torch.arange(6.0).view(2, 3).t()})
        (tmp_path / "text").write_text("x")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("weights.safetensors", "text")}
    assert modes == {0o640}
    assert torch.equal(load_file(tmp_path / "weights.safetensors")["w"], torch.arange(6.0).view(2, 3).t())


def test_a_folder_gets_its_name_whole_and_replaces_another(tmp_path: Path) -> None:
    for content in ("first", "second"):
        (tmp_path / "draft").mkdir()
        (tmp_path / "draft" / content).write_text(content)
        publish_folder(tmp_path / "draft", tmp_path / "target")
        assert [path.name for path in tmp_path.iterdir()] == ["target"]
        assert [path.name for path in (tmp_path / "target").iterdir()] == [content]
