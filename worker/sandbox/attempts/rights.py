"""Attempts to get a right that was given up, or to leave something behind for other processes."""

from __future__ import annotations

import ctypes
import errno
import os
import resource

from worker.sandbox import kernel
from worker.sandbox.escape import Ground

_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159}
_KEYCTL_GET_KEYRING_ID = 0
_SESSION_KEYRING = -3
_IPC_PRIVATE = 0
_IPC_CREAT = 0o1000
_IPC_RMID = 0
_PAGE = 4_096


def raise_limit(_: Ground) -> str:
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except ValueError as error:  # how Python tells of EPERM here
        raise PermissionError(errno.EPERM, str(error)) from error
    return "raised"


def change_groups(_: Ground) -> str:
    """To those it has: setting any needs the right to set all. Not by the C library, which speaks for all threads."""
    groups = os.getgroups()
    number = _SYS_SETGROUPS.get(kernel.machine(), -1)
    kernel.syscall(number, ctypes.c_int(len(groups)), (ctypes.c_uint32 * len(groups))(*groups))
    return "changed"


def gain_rights(_: Ground) -> str:
    """Asked and not tried: whether a program with more rights than this process would give it those."""
    if kernel.prctl(kernel.PR_GET_NO_NEW_PRIVS) == 1:
        raise PermissionError(errno.EPERM, "no_new_privs is set")
    return "a program could give more"


def shared_memory(_: Ground) -> str:
    segment = kernel.checked(
        kernel.libc.shmget(ctypes.c_int(_IPC_PRIVATE), ctypes.c_size_t(_PAGE), ctypes.c_int(_IPC_CREAT | 0o600))
    )
    kernel.checked(kernel.libc.shmctl(ctypes.c_int(segment), ctypes.c_int(_IPC_RMID), ctypes.c_void_p(0)))
    return "made"


def keyring(_: Ground) -> str:
    """The user's keys outlive a process and are read by the next."""
    number = _SYS_KEYCTL.get(kernel.machine(), -1)
    kernel.syscall(number, ctypes.c_int(_KEYCTL_GET_KEYRING_ID), ctypes.c_int(_SESSION_KEYRING), ctypes.c_int(0))
    return "found"
