"""Attempts to run a program, make a process, or reach into one."""

from __future__ import annotations

import ctypes
import errno
import os
import signal

from worker.sandbox import kernel
from worker.sandbox.escape import NOT_A_PROGRAM, Ground

_PTRACE_DETACH = 17
_PTRACE_SEIZE = 0x4206
_PTRACE_INTERRUPT = 0x4207
_WALL = 0x4000_0000
_CLONE_FS = 0x200


def run_program(ground: Ground) -> str:
    pid = os.posix_spawn(ground.targets.program, [ground.targets.program], {})
    os.waitpid(pid, 0)
    return "ran"


def make_process(ground: Ground) -> str:
    """A process with nothing to run: it is made before the kernel finds that there is no such program."""
    missing = os.path.join(ground.targets.outside_folder, "missing")
    try:
        os.posix_spawn(missing, [missing], {})
    except FileNotFoundError:
        return "made"
    raise OSError(errno.EEXIST, "what is missing was run")


def replace_itself(ground: Ground) -> str:
    return _execute(ground.targets.not_a_program)


def replace_itself_from_scratch(ground: Ground) -> str:
    """A program that it brought itself."""
    return _execute(ground.brought)


def replace_itself_from_memory(_: Ground) -> str:
    """A program that was never a file."""
    descriptor = os.memfd_create("program")
    try:
        os.write(descriptor, NOT_A_PROGRAM)
        return _execute(descriptor)
    finally:
        os.close(descriptor)


def _execute(what: str | int) -> str:
    """What the kernel takes for execution and then can't run would have replaced this process."""
    try:
        os.execve(what, ["program"], {})  # noqa: S606 - no shell is meant
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return "taken for execution"


def signal_process(ground: Ground) -> str:
    """With one that does nothing by default."""
    os.kill(ground.targets.pid, signal.SIGURG)
    return "sent"


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_process(ground: Ground) -> str:
    length = ground.targets.memory_bytes
    buffer = ctypes.create_string_buffer(length)
    mine = _Range(ctypes.addressof(buffer), length)
    theirs = _Range(ground.targets.memory_address, length)
    count = kernel.libc.process_vm_readv(
        ctypes.c_int(ground.targets.pid),
        ctypes.byref(mine),
        ctypes.c_ulong(1),
        ctypes.byref(theirs),
        ctypes.c_ulong(1),
        ctypes.c_ulong(0),
    )
    return f"read {kernel.checked(count)} bytes of memory"


def trace_process(ground: Ground) -> str:
    """Attach, and let go. Two that try at once refuse each other; `read_process` asks for the same right."""
    pid = ground.targets.pid
    _ptrace(_PTRACE_SEIZE, pid)
    _ptrace(_PTRACE_INTERRUPT, pid)
    os.waitpid(pid, _WALL)
    _ptrace(_PTRACE_DETACH, pid)
    return "attached"


def _ptrace(request: int, pid: int) -> None:
    nothing = ctypes.c_void_p(0)
    kernel.checked(kernel.libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), nothing, nothing))


def unshare(_: Ground) -> str:
    """Leave something shared with nobody: the call is what makes user namespaces too."""
    kernel.unshare(_CLONE_FS)
    return "done"
