"""The system calls the sandbox needs that Python has no function for.

Only x86_64 and aarch64 are known; on any other machine a layer that needs a number from here is reported
as missing and nothing is proven.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38

# The same numbers on both machines.
SYS_LANDLOCK_CREATE_RULESET = 444
SYS_LANDLOCK_ADD_RULE = 445
SYS_LANDLOCK_RESTRICT_SELF = 446

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def machine() -> str:
    return platform.machine()


def syscall(number: int, *arguments: object) -> int:
    """A raw system call; raises OSError as the standard library would."""
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def prctl(option: int, value: int) -> None:
    if _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def unshare(flags: int) -> None:
    if _libc.unshare(ctypes.c_int(flags)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def reason(error: OSError) -> str:
    """An OSError as `EPERM (Operation not permitted)`."""
    number = error.errno or 0
    return f"{errno.errorcode.get(number, str(number))} ({os.strerror(number)})"
