"""Folders are judged by names and sizes before a byte is read, and read so that nothing slips in between."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.artifacts import FileEntry, manifest_digest
from schemas.codes import Code, Refusal
from schemas.tokens import FILES_PER_ARTIFACT_MAX
from services.cli.prove.folder import Found, copy_files, hash_files, location_below, scan

NOBODY = 65_534


def nothing(count: int) -> None:
    """Progress that nobody looks at."""


def refused(path: Path, *exclude: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        scan(path, exclude)
    return caught.value


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "1_Pooling" / "config.json").write_text('{"mean": true}')
    (folder / "model.safetensors").write_bytes(b"\0" * 3_000_000)
    return folder


def test_a_folder_is_listed_sorted_with_sizes(model: Path) -> None:
    folder = scan(model)
    assert folder.files == [
        Found("1_Pooling/config.json", 14),
        Found("config.json", 2),
        Found("model.safetensors", 3_000_000),
    ]
    assert folder.bytes == 3_000_016


def test_hashing_gives_the_digests_of_the_bytes_and_tells_each_of_them(model: Path) -> None:
    told: list[int] = []
    entries = hash_files(scan(model), told.append)
    assert [entry.sha256 for entry in entries] == [
        hashlib.sha256((model / entry.path).read_bytes()).hexdigest() for entry in entries
    ]
    assert sum(told) == 3_000_016


def test_the_same_bytes_elsewhere_are_the_same_set(model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    assert manifest_digest(hash_files(scan(model), nothing)) == manifest_digest(hash_files(scan(other), nothing))


@pytest.mark.parametrize("target", ["config.json", "/etc/passwd", "nowhere", "1_Pooling"])
def test_a_link_is_refused_wherever_it_points(model: Path, target: str) -> None:
    (model / "link").symlink_to(target)
    refusal = refused(model)
    assert refusal.code is Code.ARTIFACT_SYMLINK
    assert "link" in refusal.message


def test_a_pipe_and_a_socket_are_refused_and_never_opened(model: Path) -> None:
    os.mkfifo(model / "pipe")  # opening it for reading would wait for ever
    refusal = refused(model)
    assert (refusal.code, "pipe is a pipe" in refusal.message) == (Code.ARTIFACT_FILE_UNEXPECTED, True)
    (model / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(model / "sock"))
        assert refused(model).code is Code.ARTIFACT_FILE_UNEXPECTED


def test_an_empty_folder_and_one_with_everything_excluded_are_refused(tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    assert refused(tmp_path / "empty").code is Code.ARTIFACT_EMPTY
    assert refused(model, "*").code is Code.ARTIFACT_EMPTY


def test_a_missing_folder_and_a_file_are_refused(tmp_path: Path, model: Path) -> None:
    assert refused(tmp_path / "missing").code is Code.ARTIFACT_FILE_MISSING
    assert refused(model / "config.json").code is Code.ARTIFACT_FILE_MISSING


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.PT", "deep/er/model.pkl", "a.ckpt", "b.joblib"])
def test_pickles_are_refused_by_name(model: Path, name: str) -> None:
    (model / name).parent.mkdir(parents=True, exist_ok=True)
    (model / name).write_bytes(b"\x80\x04")
    refusal = refused(model)
    assert refusal.code is Code.ARTIFACT_PICKLE_REFUSED
    assert name in refusal.message
    assert "--exclude" in refusal.detail["advice"]


def test_excluded_files_and_folders_are_not_looked_at(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"x")
    (model / "onnx").mkdir()
    (model / "onnx" / "link").symlink_to("/")
    assert len(scan(model, ["*.bin", "onnx/"]).files) == 3
    assert [found.path for found in scan(model, ["*.bin", "onnx", "1_Pooling/*"]).files] == [
        "config.json",
        "model.safetensors",
    ]


def test_a_hundred_thousand_files_are_answered_fast(tmp_path: Path) -> None:
    many = tmp_path / "many"
    many.mkdir()
    source = many / "file-0"
    source.touch()
    for number in range(1, 100_000):
        if number % 30_000 == 0:  # below the file system's limit of links to one file
            source = many / f"file-{number}"
            source.touch()
        else:
            os.link(source, many / f"file-{number}")
    began = time.perf_counter()
    refusal = refused(many)
    took_s = time.perf_counter() - began
    assert refusal.code is Code.ARTIFACT_TOO_MANY_FILES
    assert str(FILES_PER_ARTIFACT_MAX) in refusal.message
    assert took_s < 2.0


def test_many_folders_are_too_much_even_without_files(tmp_path: Path) -> None:
    for number in range(FILES_PER_ARTIFACT_MAX + 1):
        (tmp_path / str(number)).mkdir()
    assert refused(tmp_path).code is Code.ARTIFACT_TOO_MANY_FILES


def test_names_that_a_manifest_cannot_hold_are_refused(model: Path) -> None:
    for name in ("back\\slash", "new\nline", "c:drive"):
        (model / name).touch()
        assert refused(model).code is Code.ARTIFACT_PATH_ESCAPES
        (model / name).unlink()
    os.close(os.open(os.fsencode(model) + b"/\xff\xfe", os.O_CREAT | os.O_WRONLY))
    assert refused(model).code is Code.ARTIFACT_FILE_UNREADABLE


def test_names_that_differ_only_in_case_are_refused(model: Path) -> None:
    (model / "CONFIG.json").write_text("{}")
    assert refused(model).code is Code.ARTIFACT_PATH_DUPLICATE


def test_a_path_that_is_too_long_is_refused(model: Path) -> None:
    deep = model.joinpath(*["d" * 100] * 4)
    deep.mkdir(parents=True)
    (deep / "file").touch()
    assert "longer than" in refused(model).message


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[Path]:
    """A folder of a user who may not read everything in it; root reads everything, so become somebody else."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        os.seteuid(NOBODY)
        yield folder
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def test_an_unreadable_file_is_named(as_nobody: Path) -> None:
    euid = os.geteuid()
    os.seteuid(0) if euid == NOBODY else None
    (as_nobody / "config.json").write_text("{}")
    (as_nobody / "secret.json").write_text("{}")
    (as_nobody / "secret.json").chmod(0)
    os.seteuid(euid)
    folder = scan(as_nobody)
    with pytest.raises(Refusal) as caught:
        hash_files(folder, nothing)
    assert caught.value.code is Code.ARTIFACT_FILE_UNREADABLE
    assert "secret.json" in caught.value.message


def test_a_file_that_changed_or_became_a_link_after_the_scan_is_refused(model: Path) -> None:
    folder = scan(model)
    (model / "config.json").write_text('{"more": 1}')
    with pytest.raises(Refusal) as caught:
        hash_files(folder, nothing)
    assert caught.value.code is Code.ARTIFACT_DIGEST_MISMATCH
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("/etc/hostname")
    with pytest.raises(Refusal) as caught:
        hash_files(folder, nothing)
    assert caught.value.code is Code.ARTIFACT_FILE_UNREADABLE


def named(entries: list[FileEntry]) -> str:
    return f"model-{manifest_digest(entries)[:12]}"


def test_a_copy_is_there_whole_under_its_digest(model: Path, tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    root.mkdir()
    target, entries = copy_files(scan(model, ["1_Pooling"]), root, named, nothing)
    assert target == root / named(entries)
    assert hash_files(scan(target), nothing) == entries
    assert [path.name for path in root.iterdir()] == [target.name]


def test_a_second_copy_of_the_same_bytes_is_the_first_one(model: Path, tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    root.mkdir()
    first, _ = copy_files(scan(model), root, named, nothing)
    inode = (first / "config.json").stat().st_ino
    second, _ = copy_files(scan(model), root, named, nothing)
    assert second == first
    assert (first / "config.json").stat().st_ino == inode
    assert [path.name for path in root.iterdir()] == [first.name]


def test_an_interrupted_copy_leaves_nothing(model: Path, tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    root.mkdir()

    def stop(count: int) -> None:
        raise InterruptedError

    with pytest.raises((InterruptedError, Refusal)):
        copy_files(scan(model), root, named, stop)
    assert list(root.iterdir()) == []


def test_where_a_folder_lies_below_the_root(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    inside = root / "team" / "model"
    inside.mkdir(parents=True)
    outside = tmp_path / "model"
    outside.mkdir()
    assert location_below(scan_root(inside), str(root)) == "team/model"
    for path in (outside, root, root / ".." / "model", tmp_path / "artifacts-other"):
        with pytest.raises(Refusal) as caught:
            location_below(path.resolve(), str(root))
        assert caught.value.code is Code.ARTIFACT_OUTSIDE_ROOT


def test_a_root_reached_through_a_link_is_the_same_root(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    (root / "model").mkdir(parents=True)
    (tmp_path / "link").symlink_to(root)
    assert location_below((tmp_path / "link" / "model").resolve(), str(tmp_path / "link")) == "model"


def scan_root(path: Path) -> Path:
    (path / "file").touch()
    return scan(path).root
