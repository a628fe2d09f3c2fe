"""A load caught in its middle: its model process stands still while it loads.

A load takes a few hundred milliseconds, so a thread that does nothing else looks for the process and stops it. Whether
that was in time is then the worker's word: it says `loading`. Where it was not, the load is asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tests.chaos.system import System
from tests.chaos.waiting import WAIT_S
from worker.model.child_main import PROCESS_NAME

LOOK_S = 0.0005
TRIES_MAX = 5


@contextlib.asynccontextmanager
async def load_under_way(running: System) -> AsyncIterator[tuple[str, int]]:
    """The work and the model process of a load, which stands still in its middle until the end of the block."""
    for _ in range(TRIES_MAX):
        if await running.residency() not in ("absent", "lost", "failed"):
            await running.unloaded()
        catching = asyncio.create_task(asyncio.to_thread(_stop_next, running.plane.pid("worker") or 0))
        work_id = await running.job("load")
        assert work_id is not None
        child = await catching
        try:
            live = await running.live()
            if live is not None and [resident.entry.state for resident in live.residents] == ["loading"]:
                yield work_id, child
                return
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        await running.ended(work_id)
    raise AssertionError(f"no load could be caught in its middle in {TRIES_MAX} tries")


def _stop_next(worker: int) -> int:
    """Stop the worker's next model process; its pid."""
    until = time.monotonic() + WAIT_S
    known = _pids()
    while time.monotonic() < until:
        for pid in _pids() - known:
            with contextlib.suppress(OSError):
                name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
                if name == PROCESS_NAME and int(rest.split()[1]) == worker:
                    os.kill(pid, signal.SIGSTOP)
                    return pid
        time.sleep(LOOK_S)
    raise AssertionError(f"not within {WAIT_S} s: the worker starts a model process")


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}
