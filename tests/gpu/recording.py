"""NVML's raw answers of one device, in the form of tests/unit/worker/memory/nvml: to be kept as a test.

An answer that is an error is recorded with its code. Nothing is left out or made nicer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE, which the library turns into None


def device(nvml: Any, index: int) -> dict[str, Any]:
    """One device at this moment. `nvml` is the module `pynvml`, not initialised."""
    nvml.nvmlInit()
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        lists = {
            "compute": nvml.nvmlDeviceGetComputeRunningProcesses,
            "graphics": nvml.nvmlDeviceGetGraphicsRunningProcesses,
            "mps": nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        }
        return {
            "name": _text(nvml.nvmlDeviceGetName(handle)),
            "mig": _answer(nvml, lambda: _mig(nvml.nvmlDeviceGetMigMode(handle))),
            "memory": _answer(nvml, lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle))),
            **{
                name: _answer(nvml, lambda ask=ask: [_process(one) for one in ask(handle)])
                for name, ask in lists.items()
            },
        }
    finally:
        nvml.nvmlShutdown()


def driver(nvml: Any) -> str:
    nvml.nvmlInit()
    try:
        return _text(nvml.nvmlSystemGetDriverVersion())
    finally:
        nvml.nvmlShutdown()


def _answer(nvml: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except nvml.NVMLLibraryMismatchError:
        return {"error": int(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)}
    except nvml.NVMLError as error:
        return {"error": int(error.value)}


def _mig(modes: list[int]) -> dict[str, int]:
    current, pending = modes
    return {"current": int(current), "pending": int(pending)}


def _memory(memory: Any) -> dict[str, int]:
    return {"total": int(memory.total), "free": int(memory.free), "used": int(memory.used)}


def _process(process: Any) -> dict[str, int]:
    held = process.usedGpuMemory
    return {
        "pid": int(process.pid),
        "usedGpuMemory": NOT_AVAILABLE if held is None else int(held),
        "instance": int(process.gpuInstanceId),
    }


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
