"""What a model process can still open: the artifact, the Python installation, system libraries, devices."""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path

from msgspec import Struct

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
