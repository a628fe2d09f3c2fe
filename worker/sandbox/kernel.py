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
PR_GET_PDEATHSIG = 2
PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
NAME_BYTES_MAX = 15

# The same numbers on both machines.
SYS_IO_URING_SETUP = 425
SYS_LANDLOCK_CREATE_RULESET = 444
SYS_LANDLOCK_ADD_RULE = 445
SYS_LANDLOCK_RESTRICT_SELF = 446

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.ptrace.restype = ctypes.c_long
libc.process_vm_readv.restype = ctypes.c_ssize_t


def machine() -> str:
    return platform.machine()


def checked(result: int) -> int:
    """A libc call's result; raises OSError as the standard library would."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def syscall(number: int, *arguments: object) -> int:
    return checked(libc.syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, value: int = 0) -> int:
    return checked(libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3))


def name_process(name: str) -> None:
    """The name that process lists show for this process (its main thread's)."""
    short = ctypes.create_string_buffer(name.encode()[:NAME_BYTES_MAX])
    prctl(PR_SET_NAME, ctypes.addressof(short))


def is_child_subreaper() -> bool:
    found = ctypes.c_int(0)
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.addressof(found))
    return bool(found.value)


def unshare(flags: int) -> None:
    checked(libc.unshare(ctypes.c_int(flags)))


def reason(error: OSError) -> str:
    """An OSError as `EPERM (Operation not permitted)`."""
    number = error.errno or 0
    return f"{errno.errorcode.get(number, str(number))} ({os.strerror(number)})"
