"""Folder: what a folder holds, looked at before anything is hashed, then hashed or copied.

`scan` refuses links, special files, pickles and too much, from names and sizes alone and after at most
`FILES_PER_ARTIFACT_MAX` + 1 files, so a wrong folder is answered at once. `hash_files` and `copy_files` read the
bytes through descriptors that never follow a link, and refuse a file that is no longer what was scanned.

A copy is made in a hidden folder next to its place, written to disk, and renamed: it is there whole or not at all.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from schemas.artifacts import PICKLE_SUFFIXES, FileEntry
from schemas.codes import Code, Refusal
from schemas.tokens import FILES_PER_ARTIFACT_MAX, PATH_CHARACTERS_MAX

FOLDERS_MAX = FILES_PER_ARTIFACT_MAX
EXCLUDED_MAX = 65_536  # excluded files that are looked past before the folder is called too large
NAMED_MAX = 5  # files named in one message
BLOCK_BYTES = 4_194_304  # of 2 MiB and more, so that the kernel can keep the copy in huge pages, as models are read

OnBytes = Callable[[int], None]


class Found(Struct, frozen=True):
    """One regular file: its POSIX path relative to the folder and its size."""

    path: str
    size: int


class Folder(Struct, frozen=True):
    root: Path
    files: list[Found]
    bytes: int


def scan(path: Path, exclude: Sequence[str] = ()) -> Folder:
    """The regular files below `path`, sorted by path. `exclude` are globs on relative paths or on names."""
    root = path.resolve()
    if not root.is_dir():
        raise Refusal(Code.ARTIFACT_FILE_MISSING, f"{path} is not a folder", {"advice": "Give the model's folder."})
    files: list[Found] = []
    pickles: list[str] = []
    folded: dict[str, str] = {}
    for found in _walk(root, exclude):
        if Path(found.path).suffix.lower() in PICKLE_SUFFIXES:
            pickles.append(found.path)
        other = folded.setdefault(found.path.casefold(), found.path)
        if other != found.path:
            raise Refusal(Code.ARTIFACT_PATH_DUPLICATE, f"{other!r} and {found.path!r} differ only in case")
        files.append(found)
        if len(files) > FILES_PER_ARTIFACT_MAX:
            message = f"{path} holds more than {FILES_PER_ARTIFACT_MAX} files"
            advice = "Leave out what the model does not need, for example with --copy --exclude."
            raise Refusal(Code.ARTIFACT_TOO_MANY_FILES, message, {"advice": advice})
    if pickles:
        shown = ", ".join(sorted(pickles)[:NAMED_MAX])
        more = f" and {len(pickles) - NAMED_MAX} more" if len(pickles) > NAMED_MAX else ""
        advice = "Convert the weights to safetensors, or leave these files out with --copy --exclude."
        raise Refusal(
            Code.ARTIFACT_PICKLE_REFUSED, f"loading these can run code from the file: {shown}{more}", {"advice": advice}
        )
    if not files:
        raise Refusal(Code.ARTIFACT_EMPTY, f"{path} holds no file" + (" that is not excluded" if exclude else ""))
    files.sort(key=lambda found: found.path)
    return Folder(root, files, sum(found.size for found in files))


def _walk(root: Path, exclude: Sequence[str]) -> Iterator[Found]:
    """Every file that is not excluded, each folder once, without following links."""
    waiting = [""]
    folders = excluded = 0
    while waiting:
        base = waiting.pop()
        folders += 1
        if folders > FOLDERS_MAX:
            raise Refusal(Code.ARTIFACT_TOO_MANY_FILES, f"{root} holds more than {FOLDERS_MAX} folders")
        with _readable(base or "."), os.scandir(root / base) as entries:
            for entry in entries:
                relative = f"{base}/{entry.name}" if base else entry.name
                if _matches(relative, exclude):
                    excluded += 1
                    if excluded > EXCLUDED_MAX:
                        message = f"more than {EXCLUDED_MAX} files are excluded; exclude their folder"
                        raise Refusal(Code.ARTIFACT_TOO_MANY_FILES, message)
                    continue
                _check_name(relative)
                kind = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(kind.st_mode):
                    waiting.append(relative)
                elif stat.S_ISREG(kind.st_mode):
                    yield Found(relative, kind.st_size)
                else:
                    raise _special(relative, kind.st_mode)


def _matches(relative: str, exclude: Sequence[str]) -> bool:
    name = relative.rpartition("/")[2]
    return any(
        fnmatch.fnmatchcase(relative, pattern.rstrip("/")) or fnmatch.fnmatchcase(name, pattern.rstrip("/"))
        for pattern in exclude
    )


def _check_name(relative: str) -> None:
    """Names a manifest cannot hold are refused here, with the name, and not by the control plane later."""
    if any("\ud800" <= character <= "\udfff" for character in relative):
        raise Refusal(Code.ARTIFACT_FILE_UNREADABLE, f"the name {relative!a} is not UTF-8", {"advice": "Rename it."})
    if len(relative) > PATH_CHARACTERS_MAX:
        message = f"the path {relative[:60]!r}... is longer than {PATH_CHARACTERS_MAX} characters"
        raise Refusal(Code.ARTIFACT_FILE_UNREADABLE, message, {"advice": "Shorten it."})
    control = any(ord(character) < 32 or ord(character) == 127 for character in relative)
    if control or "\\" in relative or ":" in relative.partition("/")[0]:
        message = f"the name {relative!r} holds a control character, a backslash or a drive"
        raise Refusal(Code.ARTIFACT_PATH_ESCAPES, message, {"advice": "Rename it."})


def _special(relative: str, mode: int) -> Refusal:
    if stat.S_ISLNK(mode):
        return Refusal(Code.ARTIFACT_SYMLINK, f"{relative} is a symbolic link", {"path": relative})
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    kind = kinds.get(stat.S_IFMT(mode), "no regular file")
    advice = "A set holds regular files only. Remove it from the folder."
    return Refusal(Code.ARTIFACT_FILE_UNEXPECTED, f"{relative} is {kind}", {"path": relative, "advice": advice})


@contextmanager
def _readable(relative: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "Make it readable for you and for the worker's user."
        message = f"{relative} cannot be read: {error.strerror or error}"
        raise Refusal(Code.ARTIFACT_FILE_UNREADABLE, message, {"path": relative, "advice": advice}) from error


def hash_files(folder: Folder, on_bytes: OnBytes) -> list[FileEntry]:
    """The manifest entries of the folder. `on_bytes` is told after each block; it may raise to stop."""
    return [_read(folder.root, found, on_bytes, None) for found in folder.files]


def copy_files(
    folder: Folder, parent: Path, name: Callable[[list[FileEntry]], str], on_bytes: OnBytes
) -> tuple[Path, list[FileEntry]]:
    """Copy the folder's files to `parent / name(entries)`, hashing what is copied, in one pass over the bytes.

    A folder of that name is kept as it is: it is named by the same bytes, and the node verifies it anyway.
    """
    fresh = parent / f".incoming-{secrets.token_hex(8)}"
    try:
        fresh.mkdir(mode=0o755)
        entries = [_read(folder.root, found, on_bytes, fresh / found.path) for found in folder.files]
        target = parent / name(entries)
        if not target.is_dir():
            fresh.rename(target)
        return target, entries
    except OSError as error:
        message = f"the copy under {parent} failed: {error.strerror or error}"
        advice = "Free space there, or make it writable for you."
        raise Refusal(Code.ARTIFACT_FILE_UNREADABLE, message, {"advice": advice}) from error
    finally:
        with suppress(OSError):
            shutil.rmtree(fresh)


def _read(root: Path, found: Found, on_bytes: OnBytes, target: Path | None) -> FileEntry:
    """Hash one file, and copy it where a target is given."""
    digest = hashlib.sha256()
    block = memoryview(bytearray(BLOCK_BYTES))
    count = 0
    with _readable(found.path):
        descriptor = os.open(root / found.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as source, _target(target) as copy:
        while True:
            with _readable(found.path):
                length = source.readinto(block)
            if not length:
                break
            digest.update(block[:length])
            if copy is not None:
                copy(block[:length])
            count += length
            on_bytes(length)
    if count != found.size:
        message = f"{found.path} changed while it was read: {found.size} bytes before, {count} now"
        raise Refusal(Code.ARTIFACT_DIGEST_MISMATCH, message, {"advice": "Add the folder when nobody writes to it."})
    return FileEntry(path=found.path, size=count, sha256=digest.hexdigest())


@contextmanager
def _target(path: Path | None) -> Iterator[Callable[[memoryview], object] | None]:
    if path is None:
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        yield file.write
        file.flush()
        os.fsync(file.fileno())


def location_below(root: Path, artifact_root: str) -> str:
    """Where the folder lies below the node's artifact root, as a relative POSIX path."""
    top = Path(artifact_root).resolve()
    if root == top:
        message = f"{root} is the artifact root itself"
        raise Refusal(Code.ARTIFACT_OUTSIDE_ROOT, message, {"advice": "Give one model's folder below it."})
    if not root.is_relative_to(top):
        raise Refusal(Code.ARTIFACT_OUTSIDE_ROOT, f"{root} is not below the node's artifact root {top}")
    return root.relative_to(top).as_posix()
