"""The seccomp filter: run by hand for both machines, and by the kernel for this one."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import struct
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.worker.sandbox.test_sandbox import pytestmark as needs_kernel
from worker.sandbox import kernel, seccomp
from worker.sandbox.syscall_numbers import BY_ARGUMENT, REFUSED

PID = 4_321
ALLOWED, KILLED = 0x7FFF_0000, 0x8000_0000
PERMISSION, NO_SUCH_CALL = 0x0005_0000 | errno.EPERM, 0x0005_0000 | errno.ENOSYS
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Calls that every program makes, and what an ML runtime makes of them: files, memory, threads, devices, its own limits.
ORDINARY = {
    "x86_64": [0, 1, 3, 9, 10, 11, 16, 28, 39, 47, 46, 97, 125, 126, 157, 160, 202, 203, 204, 228, 231, 257, 318, 319],
    "aarch64": [25, 29, 56, 57, 62, 63, 64, 90, 91, 93, 94, 98, 113, 122, 163, 164, 167, 211, 212, 222, 226, 278, 279],
}
CLONE_THREAD, PTHREAD_FLAGS, FORK_FLAGS = 0x0001_0000, 0x003D_0F00, 0x0120_0011


def verdict(machine: str, number: int, argument: int = 0, arch: int | None = None) -> int:
    """What the filter returns for this call: an interpreter of the five operations that it is made of."""
    code = seccomp.program(machine, PID)
    steps = [struct.unpack("HBBI", code[at : at + 8]) for at in range(0, len(code), 8)]
    data = struct.pack("<IIQQ", number, ARCHES[machine] if arch is None else arch, 0, argument) + bytes(40)
    at, loaded = 0, 0
    for _ in range(len(steps)):
        operation, yes, no, operand = steps[at]
        at += 1
        match operation:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, operand)
            case 0x15:
                at += yes if loaded == operand else no
            case 0x35:
                at += yes if loaded >= operand else no
            case 0x45:
                at += yes if loaded & operand else no
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"operation {operation:#x}")
    raise AssertionError("the filter does not end")


# Written a second time, so that a call that is taken out of the table is missed here.
MUST_BE_REFUSED = {
    "socket", "socketpair", "io_uring_setup", "io_uring_enter", "io_uring_register", "execve", "execveat", "ptrace",
    "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_send_signal", "pidfd_getfd", "process_madvise", "shmget",
    "semget", "msgget", "mq_open", "add_key", "request_key", "keyctl", "truncate", "fchmod", "fchmodat", "fchmodat2",
    "fchown", "fchownat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr",
    "fremovexattr", "setxattrat", "removexattrat", "file_setattr", "open_by_handle_at", "inotify_init1",
    "fanotify_init", "unshare", "setns", "chroot", "pivot_root", "mount", "umount2", "open_tree", "move_mount",
    "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "bpf", "userfaultfd", "perf_event_open",
    "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff",
    "acct", "quotactl", "syslog", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname",
    "setdomainname", "personality",
}  # fmt: skip

MACHINES = pytest.mark.parametrize("machine", list(ARCHES))


@MACHINES
def test_each_refused_call_is_refused(machine: str) -> None:
    assert {name: verdict(machine, number) for name, number in REFUSED[machine].items()} == dict.fromkeys(
        REFUSED[machine], PERMISSION
    )


@MACHINES
def test_the_dangerous_calls_are_among_them(machine: str) -> None:
    assert not MUST_BE_REFUSED - set(REFUSED[machine])


@MACHINES
def test_ordinary_calls_are_allowed(machine: str) -> None:
    assert [verdict(machine, number) for number in ORDINARY[machine]] == [ALLOWED] * len(ORDINARY[machine])
    assert not set(ORDINARY[machine]) & {*REFUSED[machine].values(), *BY_ARGUMENT[machine].values()}


@MACHINES
def test_threads_and_no_processes(machine: str) -> None:
    calls = BY_ARGUMENT[machine]
    assert verdict(machine, calls["clone"], PTHREAD_FLAGS) == ALLOWED
    assert verdict(machine, calls["clone"], FORK_FLAGS) == PERMISSION
    assert verdict(machine, calls["clone"], FORK_FLAGS | 0x4000_0000) == PERMISSION
    assert verdict(machine, calls["clone3"]) == NO_SUCH_CALL


@MACHINES
@pytest.mark.parametrize("name", ["kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"])
def test_signals_to_itself_only(machine: str, name: str) -> None:
    number = BY_ARGUMENT[machine][name]
    assert verdict(machine, number, PID) == ALLOWED
    for other in (0, 1, PID + 1, 2**32 - 1, 2**64 - 1):
        assert verdict(machine, number, other) == PERMISSION


@MACHINES
def test_limits_of_itself_only(machine: str) -> None:
    number = BY_ARGUMENT[machine]["prlimit64"]
    assert [verdict(machine, number, pid) for pid in (0, PID, 1)] == [ALLOWED, ALLOWED, PERMISSION]


@MACHINES
def test_a_foreign_convention_ends_the_process(machine: str) -> None:
    for arch in (0x40000003, 0x40000028, *(arch for name, arch in ARCHES.items() if name != machine)):
        assert verdict(machine, 0, arch=arch) == KILLED
    if machine == "x86_64":
        assert verdict(machine, 0x4000_0000) == KILLED
        assert verdict(machine, 0x4000_0000 | 41) == KILLED


def test_both_machines_refuse_the_same() -> None:
    """But for calls that aarch64 does not have."""
    old = {
        "chmod", "chown", "fork", "futimesat", "inotify_init", "ioperm", "iopl", "lchown", "modify_ldt", "uselib",
        "utime", "utimes", "vfork",
    }  # fmt: skip
    assert set(REFUSED["x86_64"]) - set(REFUSED["aarch64"]) == old
    assert set(REFUSED["aarch64"]) <= set(REFUSED["x86_64"])
    assert set(BY_ARGUMENT["x86_64"]) == set(BY_ARGUMENT["aarch64"])
    for machine in ARCHES:
        numbers = [*REFUSED[machine].values(), *BY_ARGUMENT[machine].values()]
        assert len(numbers) == len(set(numbers))


def test_this_machine_is_known() -> None:
    assert platform.machine() in REFUSED


def in_a_fork(act: Callable[[], Any]) -> Any:
    """What `act` gives in a process of its own, as JSON."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on, where the tests' own process has threads
        pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(told)


# Called without a filter, these would do something whatever their arguments.
NEVER_CALLED_OUTSIDE = {"fork", "vfork", "vhangup", "msgget"}


def answers(names: list[str]) -> dict[str, int]:
    """The error that each call gives for arguments that no kernel accepts."""
    nothing = [ctypes.c_long(-1)] * 6
    told = {}
    for name in names:
        result = kernel.libc.syscall(ctypes.c_long(REFUSED[platform.machine()][name]), *nothing)
        told[name] = ctypes.get_errno() if result < 0 else 0
    return told


@needs_kernel
def test_the_kernel_refuses_each_call() -> None:
    """And without the filter it finds another fault with the same arguments, so it is the filter that refuses."""
    names = list(REFUSED[platform.machine()])

    def inside() -> dict[str, int]:
        seccomp.restrict()
        return answers(names)

    assert in_a_fork(inside) == dict.fromkeys(names, errno.EPERM)
    safe = [name for name in names if name not in NEVER_CALLED_OUTSIDE]
    outside = in_a_fork(lambda: answers(safe))
    refused_anyway = {name for name, code in outside.items() if code == errno.EPERM}
    assert len(refused_anyway) < len(safe) / 4, refused_anyway


def error_of(act: Callable[[], Any]) -> int:
    try:
        act()
    except OSError as error:
        return error.errno or -1
    except ValueError:  # how Python tells of EPERM for a limit
        return errno.EPERM
    return 0


@needs_kernel
def test_the_kernel_looks_at_arguments() -> None:
    parent = os.getpid()
    limit = resource.RLIMIT_NOFILE

    def inside() -> dict[str, Any]:
        seccomp.restrict()
        ran: list[int] = []
        thread = threading.Thread(target=lambda: ran.append(1))
        thread.start()
        thread.join()
        return {
            "thread": ran,
            "fork": error_of(os.fork),
            "own signal": error_of(lambda: os.kill(os.getpid(), signal.SIGURG)),
            "parent's signal": error_of(lambda: os.kill(parent, 0)),
            "group's signal": error_of(lambda: os.kill(0, 0)),
            "everybody's signal": error_of(lambda: os.kill(-1, 0)),
            "own limit": error_of(lambda: resource.prlimit(0, limit)),
            "parent's limit": error_of(lambda: resource.prlimit(parent, limit)),
        }

    refused = errno.EPERM
    assert in_a_fork(inside) == {
        "thread": [1], "fork": refused, "own signal": 0, "parent's signal": refused, "group's signal": refused,
        "everybody's signal": refused, "own limit": 0, "parent's limit": refused,
    }  # fmt: skip
