"""The RuntimeEnvironment of this node, found without importing an ML runtime.

Versions come from installed distributions' metadata, devices from NVML where there is a driver. The
memory of the machine is told in whole GiB: the kernel's exact figure moves between boots, and the
fingerprint must not.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from schemas.environments import Device, RuntimeEnvironment
from worker.adapters import registry

DEVICES_MAX = 64
UNKNOWN = "unknown"
_GIB = 1024**3


def runtime_environment() -> RuntimeEnvironment:
    driver, devices = _cuda()
    libc = "".join(platform.libc_ver())
    return RuntimeEnvironment(
        python=platform.python_version(),
        platform=f"{platform.system().lower()}-{platform.machine()}-{libc or 'unknown-libc'}",
        worker=_version("tenure") or "unreleased",
        packages={name: version for name in registry.packages() if (version := _version(name)) is not None},
        adapters=registry.versions(),
        devices=[_cpu(), *devices],
        driver=driver,
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> Device:
    name, total = platform.machine(), None
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024 // _GIB * _GIB
            break
    return Device(kind="cpu", index=0, name=name, memory_bytes=total)


def _cuda() -> tuple[str | None, list[Device]]:
    """Driver version and devices, or nothing where NVML isn't usable."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - without library or driver there are no CUDA devices to speak of
        return None, []
    try:
        count = min(int(pynvml.nvmlDeviceGetCount()), DEVICES_MAX)
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return driver, [_cuda_device(pynvml, index) for index in range(count)]
    except pynvml.NVMLError:
        return None, []
    finally:
        pynvml.nvmlShutdown()


def _cuda_device(nvml: Any, index: int) -> Device:
    """One that is lost, or whose memory the driver does not tell, is a device all the same."""
    name, total = UNKNOWN, None
    with contextlib.suppress(nvml.NVMLError):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = _text(nvml.nvmlDeviceGetName(handle))
        total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return Device("cuda", index, name, total)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
