"""A process that is not ours and holds device memory: what a worker must see as external use and never touch.

It comes through a process that ends at once, so that it is no child of who wanted it: it has to come before a worker's
launcher makes its process the reaper of all that is below it. It holds memory from when it is told to (a file `hold` in
its folder) until it is let go (its file `stay` is removed), lives LIFE_SECONDS_MAX at most and ends by itself.

    python -m tests.gpu.stranger launch <device> <bytes> <folder>
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from worker.launch.processes import Identity, identify, is_alive

LIFE_SECONDS_MAX = 120.0
READY_SECONDS_MAX = 60.0  # importing torch and making a context, on a cold machine
END_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
ROOT = Path(__file__).resolve().parents[2]


class Stranger(Struct, frozen=True):
    """A stranger that holds `bytes` of `device`."""

    identity: Identity
    device: str
    bytes: int
    folder: str


async def come(device: str, count: int, folder: Path) -> Stranger:
    """A stranger that is there and holds nothing yet. Raises RuntimeError where none comes."""
    (folder / "stay").touch()
    command = (sys.executable, "-m", "tests.gpu.stranger", "launch", device, str(count), str(folder))
    launched = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    await launched.wait()
    await _told(folder, "here")
    identity = msgspec.json.decode((folder / "here").read_bytes(), type=Identity)
    return Stranger(identity, device, count, str(folder))


async def hold(stranger: Stranger) -> None:
    """Have it take its memory; returns once it has. Raises RuntimeError where it does not come to that."""
    folder = Path(stranger.folder)
    (folder / "hold").touch()
    await _told(folder, "holds", stranger.identity)


async def _told(folder: Path, name: str, who: Identity | None = None) -> None:
    until = time.monotonic() + READY_SECONDS_MAX
    while not (folder / name).exists():
        if time.monotonic() > until or (who is not None and not is_alive(who)):
            (folder / "stay").unlink(missing_ok=True)
            output = (folder / "output").read_text(errors="replace")[-1_000:] if (folder / "output").exists() else ""
            raise RuntimeError(f"the stranger has ended or was not `{name}` in {READY_SECONDS_MAX:g} s: {output}")
        await asyncio.sleep(POLL_SECONDS)


async def end(stranger: Stranger) -> bool:
    """Let it go, and see it end. False where it did not within END_SECONDS_MAX."""
    (Path(stranger.folder) / "stay").unlink(missing_ok=True)
    until = time.monotonic() + END_SECONDS_MAX
    while is_alive(stranger.identity):
        if time.monotonic() > until:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


def launch(device: str, count: int, folder: Path) -> None:
    """Start it in a session of its own and leave it behind."""
    command = (sys.executable, "-m", "tests.gpu.stranger", "live", device, str(count), str(folder))
    with open(folder / "output", "wb") as output:
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def live(device: str, count: int, folder: Path) -> None:
    until = time.monotonic() + LIFE_SECONDS_MAX
    _say(folder, "here", msgspec.json.encode(identify(os.getpid())))
    kept = None
    while (folder / "stay").exists() and time.monotonic() < until:
        if kept is None and (folder / "hold").exists():
            kept = _take(device, count)
            _say(folder, "holds", b"")
        time.sleep(POLL_SECONDS)


def _say(folder: Path, name: str, content: bytes) -> None:
    partial = folder / f"{name}.partial"
    partial.write_bytes(content)
    partial.rename(folder / name)


def _take(device: str, count: int) -> Any:
    if device == "cpu":
        return bytearray(count)
    import torch

    return torch.ones(count, dtype=torch.uint8, device=device)


def main(arguments: list[str]) -> None:
    verb, device, count, folder = arguments
    {"launch": launch, "live": live}[verb](device, int(count), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
