"""Verifies that a folder holds exactly the files of a manifest, byte for byte.

The folder is walked from the artifact root by directory handles with O_NOFOLLOW, so a link in any
component is refused and not followed, and no name is resolved twice. Every entry counts: a link, a special
file or a file outside the manifest refuses the folder; only empty directories hold nothing. Each file is
read in blocks and hashed; refusals name the file, and both digests where they differ.

Blocking: run it in a thread. `Cancelled` is raised within one block of `cancel` being set.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath

from msgspec import Struct

from schemas.artifacts import FileEntry, manifest_digest
from schemas.codes import Code, Refusal
from schemas.tokens import FILES_PER_ARTIFACT_MAX

BLOCK_BYTES = 1024 * 1024
DEPTH_MAX = 32
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Cancelled(Exception):
    """The work this belongs to was given up."""


class Checked(Struct, frozen=True):
    files: int
    bytes: int
    duration_ms: float


def verify(
    root: str,
    location: str,
    artifact_id: str,
    files: Sequence[FileEntry],
    cancel: threading.Event,
    hash_bytes_max: int | None = None,
) -> Checked:
    """Compare the folder with the manifest; raises Refusal or Cancelled.

    With `hash_bytes_max`, larger files are compared by size alone: enough to look at headers, never enough
    to say that a set is verified.
    """
    begun = time.perf_counter()
    _check_manifest(artifact_id, files)
    expected = {entry.path: entry for entry in files}
    with _open_folder(root, location) as folder:
        found = dict(_walk(folder, "", 0, [FILES_PER_ARTIFACT_MAX]))
        for path in sorted(found.keys() - expected.keys()):
            raise Refusal(Code.ARTIFACT_FILE_UNEXPECTED, f"`{path}` is not in the manifest", {"file": path})
        for path in sorted(expected.keys() - found.keys()):
            raise Refusal(Code.ARTIFACT_FILE_MISSING, f"`{path}` is missing", {"file": path})
        for path in sorted(expected):
            entry = expected[path]
            if hash_bytes_max is not None and entry.size > hash_bytes_max and found[path] == entry.size:
                continue
            _verify_file(folder, entry, cancel)
    total = sum(entry.size for entry in files)
    return Checked(len(expected), total, (time.perf_counter() - begun) * 1_000.0)


def folder_path(root: str, location: str) -> str:
    """The absolute path, once `verify` has found no link in it."""
    return os.path.join(os.path.realpath(root), *_components(location))


def _check_manifest(artifact_id: str, files: Sequence[FileEntry]) -> None:
    if not files:
        raise Refusal(Code.ARTIFACT_EMPTY, "the manifest names no file")
    if len(files) > FILES_PER_ARTIFACT_MAX:
        raise Refusal(Code.ARTIFACT_TOO_MANY_FILES, f"{len(files)} files; at most {FILES_PER_ARTIFACT_MAX}")
    seen: set[str] = set()
    for entry in files:
        pure = PurePosixPath(entry.path)
        if pure.is_absolute() or ".." in pure.parts or str(pure) != entry.path or "\0" in entry.path:
            raise Refusal(Code.ARTIFACT_PATH_ESCAPES, f"`{entry.path}` is no plain relative path", {"file": entry.path})
        if entry.path in seen:
            raise Refusal(Code.ARTIFACT_PATH_DUPLICATE, f"`{entry.path}` is named twice", {"file": entry.path})
        seen.add(entry.path)
    actual = manifest_digest(files)
    if actual != artifact_id:
        raise Refusal(
            Code.ARTIFACT_DIGEST_MISMATCH,
            f"the manifest has digest {actual}, not {artifact_id}",
            {"expected": artifact_id, "actual": actual},
        )


def _components(location: str) -> list[str]:
    pure = PurePosixPath(location)
    if pure.is_absolute() or ".." in pure.parts or "\0" in location or not pure.parts:
        raise Refusal(Code.ARTIFACT_OUTSIDE_ROOT, f"location `{location}` is not inside the artifact root")
    return list(pure.parts)


@contextmanager
def _open_folder(root: str, location: str) -> Iterator[int]:
    """A handle on root/location, no component of location being a link."""
    components = _components(location)
    try:
        handle = os.open(os.path.realpath(root), _FOLDER_FLAGS)
    except OSError as error:
        raise Refusal(Code.ARTIFACT_FILE_UNREADABLE, f"the artifact root can't be opened: {error.strerror}") from error
    try:
        for component in components:
            below = _open_below(handle, component, location)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def _open_below(handle: int, name: str, path: str) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=handle)
    except FileNotFoundError as error:
        raise Refusal(Code.ARTIFACT_FILE_MISSING, f"folder `{path}` is missing", {"file": path}) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            is_link = stat.S_ISLNK(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
            if is_link:
                raise Refusal(Code.ARTIFACT_SYMLINK, f"`{path}` has a link: `{name}`", {"file": path}) from error
        message = f"folder `{path}` can't be opened: {error.strerror}"
        raise Refusal(Code.ARTIFACT_FILE_UNREADABLE, message, {"file": path}) from error


def _walk(handle: int, prefix: str, depth: int, left: list[int]) -> Iterator[tuple[str, int]]:
    """Path and size of every file beneath. `left` counts down the entries that may still come."""
    if depth > DEPTH_MAX:
        raise Refusal(Code.ARTIFACT_TOO_MANY_FILES, f"`{prefix}` is more than {DEPTH_MAX} folders deep")
    with os.scandir(handle) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        left[0] -= 1
        if left[0] < -FILES_PER_ARTIFACT_MAX:  # folders count as well; they get as many again
            raise Refusal(Code.ARTIFACT_TOO_MANY_FILES, f"over {2 * FILES_PER_ARTIFACT_MAX} entries in the folder")
        path = f"{prefix}{name}"
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise Refusal(Code.ARTIFACT_SYMLINK, f"`{path}` is a link", {"file": path})
        if stat.S_ISDIR(status.st_mode):
            below = _open_below(handle, name, path)
            try:
                yield from _walk(below, f"{path}/", depth + 1, left)
            finally:
                os.close(below)
        elif stat.S_ISREG(status.st_mode):
            yield path, status.st_size
        else:
            raise Refusal(Code.ARTIFACT_FILE_UNEXPECTED, f"`{path}` is a special file", {"file": path})


@contextmanager
def _open_file(folder: int, path: str) -> Iterator[int]:
    *parents, name = PurePosixPath(path).parts
    opened: list[int] = []
    handle = folder
    try:
        for parent in parents:
            handle = _open_below(handle, parent, path)
            opened.append(handle)
        try:
            file = os.open(name, _FILE_FLAGS, dir_fd=handle)
        except FileNotFoundError as error:
            raise Refusal(Code.ARTIFACT_FILE_MISSING, f"`{path}` is missing", {"file": path}) from error
        except OSError as error:
            code = Code.ARTIFACT_SYMLINK if error.errno == errno.ELOOP else Code.ARTIFACT_FILE_UNREADABLE
            raise Refusal(code, f"`{path}` can't be read: {error.strerror}", {"file": path}) from error
        opened.append(file)
        yield file
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


def _verify_file(folder: int, entry: FileEntry, cancel: threading.Event) -> None:
    with _open_file(folder, entry.path) as file:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            raise Refusal(Code.ARTIFACT_FILE_UNEXPECTED, f"`{entry.path}` is a special file", {"file": entry.path})
        try:
            digest, size = _hash(file, cancel)
        except OSError as error:
            message = f"`{entry.path}` can't be read: {error.strerror}"
            raise Refusal(Code.ARTIFACT_FILE_UNREADABLE, message, {"file": entry.path}) from error
        after = os.fstat(file)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise Refusal(Code.ARTIFACT_DIGEST_MISMATCH, f"`{entry.path}` changed while it was read", {"file": entry.path})
    if digest != entry.sha256 or size != entry.size:
        raise Refusal(
            Code.ARTIFACT_DIGEST_MISMATCH,
            f"`{entry.path}` has {size} bytes and SHA-256 {digest}; "
            f"the manifest says {entry.size} bytes and {entry.sha256}",
            {"file": entry.path, "expected": entry.sha256, "actual": digest, "bytes": str(size)},
        )


def _hash(file: int, cancel: threading.Event) -> tuple[str, int]:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    digest, size = hashlib.sha256(), 0
    buffer = bytearray(BLOCK_BYTES)
    view = memoryview(buffer)
    while True:
        if cancel.is_set():
            raise Cancelled
        count = os.readv(file, [view])
        if count == 0:
            return digest.hexdigest(), size
        digest.update(view[:count])
        size += count
