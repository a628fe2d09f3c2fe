"""Files against a manifest: every way in which a folder can differ has its code and names its file."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.artifacts import FileEntry, manifest_digest
from schemas.codes import Code, Refusal
from worker import artifacts


def entry(path: str, content: bytes) -> FileEntry:
    return FileEntry(path, len(content), hashlib.sha256(content).hexdigest())


FILES = [entry("a.txt", b"first"), entry("sub/b.bin", b"\0" * 3_000_000)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "set"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"first")
    (folder / "sub" / "b.bin").write_bytes(b"\0" * 3_000_000)
    return tmp_path / "root"


def verify(root: Path, location: str = "set", files: list[FileEntry] | None = None) -> artifacts.Checked:
    wanted = FILES if files is None else files
    return artifacts.verify(str(root), location, manifest_digest(wanted), wanted, threading.Event())


def refused(root: Path, location: str = "set", files: list[FileEntry] | None = None) -> Refusal:
    with pytest.raises(Refusal) as caught:
        verify(root, location, files)
    return caught.value


def test_exact_folder_passes(root: Path) -> None:
    (root / "set" / "empty").mkdir()  # holds no bytes
    checked = verify(root)
    assert (checked.files, checked.bytes) == (2, 3_000_005)


def _symlink_file(folder: Path) -> None:
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to("/etc/passwd")


def _symlink_folder(folder: Path) -> None:
    (folder / "sub").rename(folder.parent / "elsewhere")
    (folder / "sub").symlink_to(folder.parent / "elsewhere")


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(folder)
        server.bind("s")


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        (lambda f: (f / "a.txt").unlink(), Code.ARTIFACT_FILE_MISSING, "a.txt"),
        (lambda f: (f / "more").write_text("x"), Code.ARTIFACT_FILE_UNEXPECTED, "more"),
        (lambda f: (f / ".hidden").write_text("x"), Code.ARTIFACT_FILE_UNEXPECTED, ".hidden"),
        (lambda f: (f / "a.txt").write_text("other"), Code.ARTIFACT_DIGEST_MISMATCH, "a.txt"),
        (lambda f: os.truncate(f / "sub" / "b.bin", 100), Code.ARTIFACT_DIGEST_MISMATCH, "sub/b.bin"),
        (_symlink_file, Code.ARTIFACT_SYMLINK, "a.txt"),
        (_symlink_folder, Code.ARTIFACT_SYMLINK, "sub"),
        (_fifo, Code.ARTIFACT_FILE_UNEXPECTED, "pipe"),
        (_socket, Code.ARTIFACT_FILE_UNEXPECTED, "s"),
    ],
)
def test_each_difference_has_its_code(
    root: Path, change: Callable[[Path], object], code: Code, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    change(root / "set")
    refusal = refused(root)
    assert refusal.code == code
    assert named in refusal.message


def test_mismatch_names_both_digests(root: Path) -> None:
    os.truncate(root / "set" / "sub" / "b.bin", 100)
    refusal = refused(root)
    assert FILES[1].sha256 in refusal.message
    assert hashlib.sha256(b"\0" * 100).hexdigest() in refusal.message
    assert refusal.detail["file"] == "sub/b.bin"


@pytest.mark.parametrize("location", ["../set", "/etc", "set/../set", "..", ""])
def test_location_stays_inside_the_root(root: Path, location: str) -> None:
    assert refused(root, location).code == Code.ARTIFACT_OUTSIDE_ROOT


def test_location_through_a_link_is_refused(root: Path) -> None:
    (root / "link").symlink_to(root / "set")
    assert refused(root, "link").code == Code.ARTIFACT_SYMLINK


@pytest.mark.parametrize("path", ["../a.txt", "/etc/passwd", "sub/../a.txt", "./a.txt", "a//b"])
def test_manifest_paths_are_plain(root: Path, path: str) -> None:
    assert refused(root, files=[entry(path, b"")]).code == Code.ARTIFACT_PATH_ESCAPES


def test_manifest_must_be_the_sets(root: Path) -> None:
    with pytest.raises(Refusal) as caught:
        artifacts.verify(str(root), "set", "0" * 64, FILES, threading.Event())
    assert caught.value.code == Code.ARTIFACT_DIGEST_MISMATCH
    assert refused(root, files=[]).code == Code.ARTIFACT_EMPTY
    assert refused(root, files=[FILES[0], FILES[0]]).code == Code.ARTIFACT_PATH_DUPLICATE


def test_missing_folder(root: Path) -> None:
    assert refused(root, "nowhere").code == Code.ARTIFACT_FILE_MISSING


def test_cancel_ends_it_within_a_block(root: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(artifacts.Cancelled):
        artifacts.verify(str(root), "set", manifest_digest(FILES), FILES, cancel)


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (root / "set" / "more").write_text("x")
    refused(root)
    refused(root, "nowhere")
    assert len(os.listdir("/proc/self/fd")) == before
