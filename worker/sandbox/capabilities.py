"""Linux capabilities: the rights that make root root. A model process keeps at most one of them.

The one kept is reading what file modes hide, because an artifact's files may belong to another user than
the worker; Landlock still decides which files those are. A process without capabilities has none to
drop; its bounding set stays full, which gives it nothing while no_new_privs is set.
"""

from __future__ import annotations

import ctypes
import errno

from worker.sandbox import kernel

CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAP_SETPCAP = 8
CAP_SYS_PTRACE = 19

_VERSION_3 = 0x2008_0522
_SYS_CAPGET = {"x86_64": 125, "aarch64": 90}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_MAX = 64  # the bits of the kernel's own sets


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def held() -> int:
    """This thread's effective set, as bits; 0 on an unknown machine."""
    try:
        return effective()
    except OSError:
        return 0


def effective() -> int:
    """This thread's effective set, as bits. Raises OSError on an unknown machine."""
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    kernel.syscall(_number(_SYS_CAPGET), ctypes.byref(header), ctypes.byref(sets))
    return int(sets[0].effective) | int(sets[1].effective) << 32


def drop_all_but(kept: int) -> None:
    """Keep of the effective and permitted sets what is in `kept`; empty the inheritable, ambient and bounding sets."""
    now = effective()
    kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    if now >> CAP_SETPCAP & 1:
        _empty_the_bounding_set()
    low, high = now & kept & 0xFFFF_FFFF, now >> 32 & kept >> 32
    header = _Header(_VERSION_3, 0)
    sets = (_Sets * 2)(_Sets(low, low, 0), _Sets(high, high, 0))
    kernel.syscall(_number(_SYS_CAPSET), ctypes.byref(header), ctypes.byref(sets))


def _empty_the_bounding_set() -> None:
    for capability in range(_CAPABILITIES_MAX):
        try:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:  # past the last one this kernel knows
                return
            raise


def _number(numbers: dict[str, int]) -> int:
    if kernel.machine() not in numbers:
        raise OSError(errno.ENOSYS, f"no system call numbers for {kernel.machine()}")
    return numbers[kernel.machine()]
