"""Attempts to read or change a file outside the artifact and the scratch folder."""

from __future__ import annotations

import contextlib
import os
import stat

from worker.sandbox.confinement import FILE_BYTES_MAX
from worker.sandbox.escape import Ground, Unavailable

SYSTEM_FILE = "/etc/passwd"


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return f"read {len(file.read())} bytes"


def read_outside(ground: Ground) -> str:
    return _read(ground.targets.outside_file)


def read_system_file(_: Ground) -> str:
    return _read(SYSTEM_FILE)


def read_by_link(ground: Ground) -> str:
    return _read(ground.link)


def read_by_descriptor(ground: Ground) -> str:
    return f"read {len(os.pread(ground.descriptor, 4_096, 0))} bytes"


def list_outside(ground: Ground) -> str:
    return f"saw {len(os.listdir(ground.targets.outside_folder))} names"


def write_outside(ground: Ground) -> str:
    path = os.path.join(ground.targets.outside_folder, f"escaped-{os.getpid()}")
    with open(path, "wb") as file:
        file.write(b"out")
    os.unlink(path)
    return "written"


def write_artifact(ground: Ground) -> str:
    """Open for writing, and write nothing."""
    if not ground.artifact_file:
        raise Unavailable("the artifact folder has no file to try on")
    os.close(os.open(ground.artifact_file, os.O_WRONLY | os.O_CLOEXEC))
    return "opened for writing"


def truncate_outside(ground: Ground) -> str:
    """To the length it has."""
    path = ground.targets.outside_file
    os.truncate(path, os.stat(path).st_size)
    return "truncated"


def change_mode(ground: Ground) -> str:
    """To the mode it has."""
    path = ground.targets.outside_file
    os.chmod(path, stat.S_IMODE(os.stat(path).st_mode))
    return "changed"


def link_outside(ground: Ground) -> str:
    """A second name for the file outside, in the folder that may be read."""
    path = os.path.join(ground.scratch, f"hard-{os.getpid()}")
    os.link(ground.targets.outside_file, path)
    with contextlib.suppress(OSError):
        os.unlink(path)
    return "linked"


def grow_file(ground: Ground) -> str:
    """A file longer than the limit. It has no content, so outside it takes no room."""
    path = os.path.join(ground.scratch, f"grown-{os.getpid()}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
        os.unlink(path)
    return f"grown to {FILE_BYTES_MAX + 1} bytes"
