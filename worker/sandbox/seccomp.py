"""seccomp: a BPF filter that refuses sockets, new programs and processes, and the known ways around both.

The link to the parent is a stream socket pair made before. Threads can be made, processes can't: `clone`
needs CLONE_THREAD, and `clone3`, whose flags a filter can't read, is said not to exist, so that the C
library takes `clone`. Signals and limits reach only the process itself. Refused calls give EPERM, so that
libraries see an ordinary error; a call under a foreign calling convention ends the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from worker.sandbox import kernel
from worker.sandbox.syscall_numbers import BY_ARGUMENT, REFUSED

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_X32_BIT = 0x4000_0000
_CLONE_THREAD = 0x0001_0000

_SET_MODE_FILTER = 1
_FLAG_TSYNC = 1  # all threads of the process, not only this one

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_NUMBER_AT = 0  # offsets in struct seccomp_data
_ARCH_AT = 4
_ARGUMENT_AT = 16  # the lower half of the first argument: both machines are little-endian
_ALLOW = 0x7FFF_0000
_KILL_PROCESS = 0x8000_0000
_REFUSE = 0x0005_0000 | errno.EPERM
_ABSENT = 0x0005_0000 | errno.ENOSYS

Step = tuple[int, int, int, int]  # operation, steps to skip if true, if false, operand


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def program(machine: str, pid: int) -> bytes:
    """The filter for this machine and process, as `struct sock_filter[]`. Raises KeyError for an unknown machine."""
    steps: list[Step] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    calls = BY_ARGUMENT[machine]
    steps += _only(calls["clone3"], [(_RETURN, 0, 0, _ABSENT)])
    steps += _only(calls["clone"], _first_argument((_ANY_BIT, 0, 1, _CLONE_THREAD)))
    for name in ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        steps += _only(calls[name], _first_argument((_EQUAL, 0, 1, pid)))
    steps += _only(calls["prlimit64"], _first_argument((_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, pid)))
    # Jumps are relative: from test i to the refusal, past the remaining tests and the permission.
    numbers = sorted(REFUSED[machine].values())
    steps += [(_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _only(number: int, body: list[Step]) -> list[Step]:
    """`body`, which returns in any case, for this call."""
    return [(_EQUAL, 0, len(body), number), *body]


def _first_argument(*tests: Step) -> list[Step]:
    """Allow what passes the tests and refuse the rest."""
    return [(_LOAD, 0, 0, _ARGUMENT_AT), *tests, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]


def restrict() -> None:
    """Put the filter on every thread of this process. Needs no_new_privs or root; raises OSError where refused."""
    machine = kernel.machine()
    if machine not in REFUSED:
        raise OSError(errno.ENOSYS, f"no system call numbers for {machine}")
    install(program(machine, os.getpid()))


def install(code: bytes) -> None:
    buffer = ctypes.create_string_buffer(code, len(code))
    description = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    kernel.syscall(
        _SYS_SECCOMP[kernel.machine()],
        ctypes.c_uint(_SET_MODE_FILTER),
        ctypes.c_uint(_FLAG_TSYNC),
        ctypes.byref(description),
    )
