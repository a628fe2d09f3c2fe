"""An own network namespace: no interface but a loopback that is down, no abstract sockets of others.

Root makes one directly. Anybody else needs a user namespace around it, where the kernel allows that. In
one, the rights over files that root has outside are gone, so a process that has such rights is not put
into one: it would lose what it needs to read its artifact.
"""

from __future__ import annotations

import contextlib
import os

from worker.sandbox import capabilities, kernel

CLONE_NEWNET = 0x4000_0000
CLONE_NEWUSER = 0x1000_0000
_OVER_FILES = 1 << capabilities.CAP_DAC_OVERRIDE | 1 << capabilities.CAP_DAC_READ_SEARCH


def leave_the_network() -> str:
    """How it was done: empty, or `in a user namespace`. Raises OSError where the kernel refuses both ways."""
    try:
        kernel.unshare(CLONE_NEWNET)
    except PermissionError:
        if capabilities.effective() & _OVER_FILES:
            raise
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(CLONE_NEWNET | CLONE_NEWUSER)
        _keep_the_name(user, group)
        return "in a user namespace"
    return ""


def _keep_the_name(user: int, group: int) -> None:
    """Let the process see its own user and group as before. Only what it sees: rights don't hang on this."""
    with contextlib.suppress(OSError):
        for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "wb", buffering=0) as file:
                file.write(line.encode())
