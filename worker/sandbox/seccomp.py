"""seccomp: a BPF filter that refuses sockets, new programs and the known ways around both.

No socket of any family can be made, AF_UNIX included: a datagram socket can name any path, and something
that listens there could carry data out. io_uring is refused because it makes sockets without `socket`,
`pidfd_getfd` and `ptrace` because they take another process's. The link to the parent is a stream
socket pair made before. Refused calls give EPERM, so that libraries see an ordinary error; a call under a
foreign calling convention ends the process.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from worker.sandbox import kernel

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_X32_BIT = 0x4000_0000

_SET_MODE_FILTER = 1
_FLAG_TSYNC = 1  # all threads of the process, not only this one

REFUSED: dict[str, dict[str, int]] = {
    "x86_64": {
        "socket": 41,
        "socketpair": 53,
        "execve": 59,
        "ptrace": 101,
        "pivot_root": 155,
        "chroot": 161,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "init_module": 175,
        "delete_module": 176,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "unshare": 272,
        "perf_event_open": 298,
        "open_by_handle_at": 304,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "finit_module": 313,
        "kexec_file_load": 320,
        "bpf": 321,
        "execveat": 322,
        "userfaultfd": 323,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
        "open_tree": 428,
        "move_mount": 429,
        "fsopen": 430,
        "pidfd_getfd": 438,
    },
    "aarch64": {
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "chroot": 51,
        "unshare": 97,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "ptrace": 117,
        "reboot": 142,
        "socket": 198,
        "socketpair": 199,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "execve": 221,
        "swapon": 224,
        "swapoff": 225,
        "perf_event_open": 241,
        "open_by_handle_at": 265,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "finit_module": 273,
        "bpf": 280,
        "execveat": 281,
        "userfaultfd": 282,
        "kexec_file_load": 294,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
        "open_tree": 428,
        "move_mount": 429,
        "fsopen": 430,
        "pidfd_getfd": 438,
    },
}

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_NUMBER_AT = 0  # offsets in struct seccomp_data
_ARCH_AT = 4
_ALLOW = 0x7FFF_0000
_KILL_PROCESS = 0x8000_0000
_REFUSE = 0x0005_0000 | errno.EPERM


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def program(machine: str) -> bytes:
    """The filter for this machine, as `struct sock_filter[]`. Raises KeyError for an unknown machine."""
    numbers = sorted(REFUSED[machine].values())
    steps: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    # Jumps are relative: from test i to the refusal, past the remaining tests and the permission.
    steps += [(_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def restrict() -> None:
    """Put the filter on every thread of this process. Needs no_new_privs; raises OSError where refused."""
    machine = kernel.machine()
    if machine not in REFUSED:
        raise OSError(errno.ENOSYS, f"no system call numbers for {machine}")
    code = program(machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    description = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    kernel.syscall(
        _SYS_SECCOMP[machine],
        ctypes.c_uint(_SET_MODE_FILTER),
        ctypes.c_uint(_FLAG_TSYNC),
        ctypes.byref(description),
    )
