"""What a model process keeps, and the layers that take the rest away.

It keeps: reading the artifact folder, the Python installation, system libraries and its own /proc entry;
writing its scratch folder; the devices of its profile; the stream to its parent. Everything else is
given up before an ML library is imported, while the process has one thread, because Landlock and the
capability sets bind threads and not processes.

`confine` never raises for a layer that the kernel refuses: it names it in `missing` with the reason. What
that means is for `escape` to find out by trying.
"""

from __future__ import annotations

import ctypes
import glob
import os
import resource
import sys
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from worker.sandbox import kernel, landlock, seccomp

LAYERS = ("network_namespace", "no_new_privs", "rlimits", "capabilities", "landlock", "seccomp")

OPEN_FILES_MAX = 1_024
_CLONE_NEWNET = 0x4000_0000
_CAPABILITY_VERSION_3 = 0x2008_0522
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAP_DAC_READ_SEARCH = 2  # kept: the artifact's files may belong to another user; Landlock still decides

_SYSTEM_READ = (
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib",
    "/lib64",
    "/usr/share/zoneinfo",
    "/usr/share/locale",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/filesystems",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/max_map_count",
    "/proc/sys/kernel/osrelease",
    "/sys/devices/system",
    "/sys/kernel/mm/transparent_hugepage",
)
_CUDA_READ = (
    "/proc/driver/nvidia",
    "/proc/devices",
    "/proc/modules",
    "/sys/bus/pci",
    "/sys/devices",
    "/usr/local/cuda",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


class Policy(Struct, frozen=True):
    """What this process keeps. `folder` holds the artifact, `scratch` is its only writable place."""

    folder: str
    scratch: str
    cuda: bool = False


class Applied(Struct, frozen=True):
    applied: list[str]
    missing: list[str]


def confine(policy: Policy, layers: Collection[str] = LAYERS) -> Applied:
    """Apply the layers in their order. Only tests name fewer than all."""
    applied: list[str] = []
    missing: list[str] = []
    for layer in LAYERS:
        if layer not in layers:
            missing.append(f"{layer}: switched off")
            continue
        try:
            applied.append(_apply(layer, policy))
        except OSError as error:
            missing.append(f"{layer}: {kernel.reason(error)}")
    return Applied(applied, missing)


def _apply(layer: str, policy: Policy) -> str:
    match layer:
        case "network_namespace":
            kernel.unshare(_CLONE_NEWNET)
        case "no_new_privs":
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        case "rlimits":
            _limit_resources()
        case "capabilities":
            _drop_capabilities()
        case "landlock":
            threads = len(os.listdir("/proc/self/task"))
            if threads != 1:
                raise OSError(16, f"{threads} threads run already")
            version = landlock.restrict(readable(policy), [Path(policy.scratch)], devices(policy))
            return f"landlock abi {version}"
        case "seccomp":
            seccomp.restrict()
    return layer


def readable(policy: Policy) -> list[Path]:
    """Every path that stays readable."""
    own = Path(__file__).resolve().parents[2]
    paths = [policy.folder, sys.prefix, os.path.realpath(sys.base_prefix + "/lib"), f"/proc/{os.getpid()}"]
    paths += [str(own / "worker"), str(own / "schemas"), *_SYSTEM_READ]
    # Installed libraries can lie outside the prefix (a user site, a distribution's dist-packages).
    paths += [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    if policy.cuda:
        paths += _CUDA_READ
    return [Path(path) for path in paths]


def devices(policy: Policy) -> list[Path]:
    names = list(_DEVICES)
    if policy.cuda:
        names += glob.glob("/dev/nvidia*")
    return [Path(name) for name in names]


def _limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bound = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(OPEN_FILES_MAX, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (bound, bound))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _held_capabilities() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0


def _drop_capabilities() -> None:
    """Keep at most the right to read what file modes hide; an unprivileged process has none to drop."""
    number = _SYS_CAPSET.get(kernel.machine())
    if number is None:
        raise OSError(38, "no system call number for this machine")
    kept = _held_capabilities() & (1 << _CAP_DAC_READ_SEARCH)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    sets = (_CapabilitySets * 2)(_CapabilitySets(kept, kept, 0), _CapabilitySets(0, 0, 0))
    kernel.syscall(number, ctypes.byref(header), ctypes.byref(sets))
