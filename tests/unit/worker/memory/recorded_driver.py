"""A driver made of recorded answers, under the real `pynvml`: the C functions are answered from JSON files.

The library's own code runs, from its structs and the two calls that size a list to how `NVML_VALUE_NOT_AVAILABLE`
becomes None and an error code becomes an exception. What stands in is only the shared library that no machine
without a device has.

The files in `nvml/` are CONSTRUCTED after the structs and codes that nvml.h and pynvml document. None of them was
recorded on hardware; each says so in `origin`. Total sizes are those the cards are known for, all use is made up.

A file is `{origin, driver, init, missing, steps}`: `init` is the code of nvmlInit, `missing` names functions that
this driver lacks, `steps` the state of all devices at one look after another (the last one stays). A part of a device
that is `{"error": code}` answers with that code, and a part that is absent with NVML_ERROR_NOT_SUPPORTED.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

FOLDER = Path(__file__).parent / "nvml"
RECORDINGS = sorted(path.stem for path in FOLDER.glob("*.json"))


class RecordedDriver:
    """`libnvidia-ml`, as far as it is asked. `opened` counts what was initialised and not shut down."""

    def __init__(self, recording: dict[str, Any]) -> None:
        self.origin: str = recording["origin"]
        self.driver: str = recording["driver"]
        self.init: int = recording.get("init", pynvml.NVML_SUCCESS)
        self.missing: list[str] = recording.get("missing", [])
        self.steps: list[list[dict[str, Any]]] = recording["steps"]
        self.looks = 0
        self.opened = 0
        self._functions: dict[str, Callable[..., int]] = {
            "nvmlInitWithFlags": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlSystemGetDriverVersion": self._version,
            "nvmlDeviceGetCount_v2": self._count,
            "nvmlDeviceGetHandleByIndex_v2": self._handle,
            "nvmlDeviceGetName": self._name,
            "nvmlDeviceGetMigMode": self._mig,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetComputeRunningProcesses_v3": self._processes("compute"),
            "nvmlDeviceGetGraphicsRunningProcesses_v3": self._processes("graphics"),
            "nvmlDeviceGetMPSComputeRunningProcesses_v3": self._processes("mps"),
        }

    @property
    def devices(self) -> list[dict[str, Any]]:
        return self.steps[min(max(self.looks - 1, 0), len(self.steps) - 1)]

    def function(self, name: str) -> Callable[..., int]:
        """What `dlsym` would find."""
        if name in self.missing or name not in self._functions:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return self._functions[name]

    def _init(self, flags: int) -> int:
        if self.init == pynvml.NVML_SUCCESS:
            self.looks += 1
            self.opened += 1
        return self.init

    def _shutdown(self) -> int:
        self.opened -= 1
        return int(pynvml.NVML_SUCCESS)

    def _version(self, version: Any, length: Any) -> int:
        version.value = self.driver.encode()
        return int(pynvml.NVML_SUCCESS)

    def _count(self, count: Any) -> int:
        count._obj.value = len(self.devices)
        return int(pynvml.NVML_SUCCESS)

    def _handle(self, index: Any, handle: Any) -> int:
        if index.value >= len(self.devices):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        # An opaque pointer: its address says which device it is.
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = index.value + 1
        return self._code(self.devices[index.value].get("handle", {}))

    def _part(self, handle: Any, name: str) -> tuple[Any, int]:
        device = self.devices[(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1]
        part = device.get(name, {"error": pynvml.NVML_ERROR_NOT_SUPPORTED})
        return part, self._code(part)

    def _code(self, part: Any) -> int:
        return int(part.get("error", pynvml.NVML_SUCCESS)) if isinstance(part, dict) else int(pynvml.NVML_SUCCESS)

    def _name(self, handle: Any, name: Any, length: Any) -> int:
        part, code = self._part(handle, "name")
        name.value = str(part).encode()
        return code

    def _mig(self, handle: Any, current: Any, pending: Any) -> int:
        part, code = self._part(handle, "mig")
        if not code:
            current._obj.value, pending._obj.value = part["current"], part["pending"]
        return code

    def _memory(self, handle: Any, memory: Any) -> int:
        part, code = self._part(handle, "memory")
        if not code:
            memory._obj.total, memory._obj.free, memory._obj.used = part["total"], part["free"], part["used"]
        return code

    def _processes(self, kind: str) -> Callable[..., int]:
        def listed(handle: Any, count: Any, array: Any) -> int:
            part, code = self._part(handle, kind)
            if code:
                return code
            count._obj.value = len(part)
            if array is None:
                return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) if part else int(pynvml.NVML_SUCCESS)
            for info, process in zip(array, part, strict=False):
                info.pid, info.usedGpuMemory = process["pid"], process["usedGpuMemory"]
                info.gpuInstanceId = info.computeInstanceId = process.get("instance", 2**32 - 1)
            return int(pynvml.NVML_SUCCESS)

        return listed


def read(name: str) -> dict[str, Any]:
    recording: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return recording


def install(name: str, monkeypatch: pytest.MonkeyPatch, pids: Mapping[int, int] | None = None) -> RecordedDriver:
    """Put this recording under pynvml until the test ends. The library itself stays as it is.

    `pids` puts real processes in the place of recorded ones.
    """
    recording = read(name)
    for device in [device for step in recording["steps"] for device in step]:
        for kind in ("compute", "graphics", "mps"):
            for process in device.get(kind, []) if isinstance(device.get(kind), list) else []:
                process["pid"] = (pids or {}).get(process["pid"], process["pid"])
    driver = RecordedDriver(recording)
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", driver.function)
    return driver
