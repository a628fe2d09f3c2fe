"""A worker's launcher and one model process in a program of their own, for tests of what becomes of them.

    python -m tests.unit.worker.launch.worker_alone STATE

Prints a JSON line with the pids; the model process has left another one behind. At the end of its input it kills
the model process and prints the pids of the children that are left, zombies too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import structlog

from schemas.profiles import RuntimeProfile
from tests.unit.worker.launch.own_processes import children
from worker.launch.fork_server import Begin
from worker.launch.launching import Launcher
from worker.model import frames
from worker.model.child import ModelProcess

LEAVER = RuntimeProfile(adapter="leaver", task="embedding")
ANSWER_MS = 20_000.0


async def main() -> None:
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=sys.stderr))
    begin = Begin(["tests.unit.worker.launch.preloaded.leaving"], [])
    launcher = Launcher.open(Path(sys.argv[1]), begin, ends_strays=True)
    model = await ModelProcess.spawn(launcher, LEAVER)
    answer = await model.ask(frames.Prepare(LEAVER, frames.Source("a", "p", "1")), ANSWER_MS)
    assert isinstance(answer, frames.Prepared)
    assert launcher.fork_server is not None
    pids = {"model": model.identity.pid, "server": launcher.fork_server.pid, "left": int(answer.versions["left"])}
    print(json.dumps({"way": model.way, **pids}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await model.kill()
    print(json.dumps(children()), flush=True)
    await launcher.close()


asyncio.run(main())
