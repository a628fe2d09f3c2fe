"""Landlock: the process gives up every file, every TCP port and every process outside but what is named here.

The kernel offers more rights to handle with each ABI version. All file rights of the running kernel's
ABI are handled, so what isn't granted is refused. A ruleset binds the calling thread and the threads it starts
later, not threads that already run: apply it while there is one thread. Any ruleset at all also keeps the
process from tracing one outside. Files, TCP and scopes are three rulesets, each a layer of its own.

Landlock does not cover reading and changing a file's mode, owner, times and attributes, nor sockets that
have a path, nor programs in memory; seccomp refuses those.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from worker.sandbox import kernel

_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13  # from ABI 2
TRUNCATE = 1 << 14  # from ABI 3
IOCTL_DEV = 1 << 15  # from ABI 5

NET_BIND_TCP = 1 << 0  # from ABI 4
NET_CONNECT_TCP = 1 << 1
SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0  # from ABI 6
SCOPE_SIGNAL = 1 << 1

TCP_ABI = 4
SCOPES_ABI = 6
FILES_BYTES, TCP_BYTES, SCOPES_BYTES = 8, 16, 24  # of the attributes, as each ABI knows them

READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # what a rule on one file may grant


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class TooOld(Exception):
    """This kernel's Landlock can't do it; the message says what is needed."""


def abi() -> int:
    """The kernel's Landlock ABI version. Raises OSError where there is none."""
    return kernel.syscall(
        kernel.SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION)
    )


def handled_rights(version: int) -> int:
    rights = (1 << 13) - 1
    for right, since in ((REFER, 2), (TRUNCATE, 3), (IOCTL_DEV, 5)):
        if version >= since:
            rights |= right
    return rights


def restrict_files(read: Iterable[Path], write: Iterable[Path], device: Iterable[Path]) -> int:
    """Keep only: read beneath `read`, read and write beneath `write`, use the device files in `device`.

    Paths that don't exist are left out (nothing is granted by leaving out). Returns the ABI version.
    """
    version = abi()
    handled = handled_rights(version)
    with _ruleset(_RulesetAttributes(handled, 0, 0), FILES_BYTES) as ruleset:
        for paths, rights in (
            (read, READ),
            (write, WRITE),
            (device, READ_FILE | WRITE_FILE | READ_DIR | IOCTL_DEV),
        ):
            for path in paths:
                _grant(ruleset, path, rights & handled)
    return version


def restrict_tcp() -> None:
    """No TCP port can be bound and none connected to. UDP and other protocols are not Landlock's."""
    _need(TCP_ABI)
    with _ruleset(_RulesetAttributes(0, NET_BIND_TCP | NET_CONNECT_TCP, 0), TCP_BYTES):
        pass


def restrict_scopes() -> None:
    """No abstract socket and no signal reaches a process outside."""
    _need(SCOPES_ABI)
    with _ruleset(_RulesetAttributes(0, 0, SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL), SCOPES_BYTES):
        pass


def _need(version: int) -> None:
    if abi() < version:
        raise TooOld(f"Landlock ABI {version} is needed, this kernel has {abi()}")


@contextlib.contextmanager
def _ruleset(attributes: _RulesetAttributes, size: int) -> Iterator[int]:
    """A ruleset to add rules to, put on this thread at the end."""
    ruleset = kernel.syscall(
        kernel.SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0)
    )
    try:
        yield ruleset
        kernel.syscall(kernel.SYS_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _grant(ruleset: int, path: Path, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # what can't be reached anyway needs no right
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{handle}"):
            rights &= _FILE_RIGHTS
        rule = _PathBeneath(rights, handle)
        kernel.syscall(
            kernel.SYS_LANDLOCK_ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(handle)
