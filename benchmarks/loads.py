"""From the order to load to the first vector: a copy of the fork server beside a fresh interpreter, in turn.

The worker's own loading steps run here, on MiniLM's files: start, sandbox with every attempt to break out, imports,
weights, the health check, and then one invocation. Files are not hashed: that time is the disk's and the same for both.
The fork server's own start is not in it either, and is told apart. Rounds change the order of the two.

    python -m benchmarks.loads ROUNDS
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import structlog
import uvloop

from schemas.profiles import RuntimeProfile
from schemas.tasks.text import EmbedRequest
from services.cli.demo.command import model_folder
from worker.launch.launching import Launcher, beginning
from worker.memory.accelerator import NoAccelerator
from worker.memory.device_watch import DeviceWatch
from worker.model import frames
from worker.model.loading import load_model, unload_model
from worker.sandbox.decoys import Decoys

TEXT = "A lease is a promise with an end."
PROFILE = RuntimeProfile(adapter="sentence_transformers", task="embedding", threads=2)
SOURCE = frames.Source("bench", "bench", "1")
READY_S = 120.0
ANSWER_MS = 30_000.0


async def one(launcher: Launcher, decoys: Decoys, devices: DeviceWatch, folder: str) -> dict[str, Any]:
    """One load and its first vector, in milliseconds by step; then the unload, outside the clock."""
    begun = time.perf_counter()
    model = await load_model(launcher, decoys.targets, folder, PROFILE, SOURCE, devices, lambda stage: None)
    loaded = time.perf_counter()
    request = msgspec.msgpack.encode(EmbedRequest(texts=[TEXT]))
    answer = await model.process.ask(frames.Invoke(1, [request]), ANSWER_MS)
    ended = time.perf_counter()
    if not isinstance(answer, frames.Batch) or not isinstance(answer.answers[0], frames.Answered):
        raise RuntimeError(f"no vector came: {answer}")
    if not model.offline.proven:
        raise RuntimeError("the sandbox was not proven")
    await unload_model(model)
    return {
        "way": model.process.way, "total_ms": (ended - begun) * 1_000.0, "prepare_ms": model.prepare_ms,
        "load_ms": model.load_ms, "health_ms": model.health_ms, "first_ms": (ended - loaded) * 1_000.0,
    }  # fmt: skip


async def loads(rounds: int) -> dict[str, Any]:
    folder = str(model_folder(None))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as name:
        state = Path(name)
        decoys, devices = await Decoys.open(state), DeviceWatch(NoAccelerator())
        begun = time.perf_counter()
        copying, fresh = Launcher.open(state, beginning()), Launcher.open(state, None)
        try:
            async with asyncio.timeout(READY_S):
                warm = await one(copying, decoys, devices, folder)  # waits for the fork server's imports
            first_ms = (time.perf_counter() - begun) * 1_000.0
            await one(fresh, decoys, devices, folder)  # the files are in the page cache for both
            got: dict[str, list[dict[str, Any]]] = {"forked": [], "fresh": []}
            for number in range(rounds):
                for launcher in (copying, fresh) if number % 2 else (fresh, copying):
                    each = await one(launcher, decoys, devices, folder)
                    got[each["way"]].append(each)
        finally:
            await copying.close()
            await fresh.close()
            await devices.close()
            await decoys.close()
    if warm["way"] != "forked" or {way: len(taken) for way, taken in got.items()} != dict.fromkeys(got, rounds):
        raise RuntimeError("a load was not started the way it should have been")
    ratio = median(slow["total_ms"] / fast["total_ms"] for slow, fast in zip(got["fresh"], got["forked"], strict=True))
    return {"rounds": rounds, "ratio": ratio, "first_ms": first_ms, "steps": {way: steps(got[way]) for way in got}}


def steps(taken: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median and worst of each step."""
    names = [name for name in taken[0] if name != "way"]
    values = {name: [each[name] for each in taken] for name in names}
    return {name: {"median": median(values[name]), "worst": max(values[name])} for name in names}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(loads(int(sys.argv[1])))))
