"""Processes as the system sees them: stop them, and see them gone."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psutil

from tests.chaos.waiting import eventually


def tree(pid: int) -> list[int]:
    """A process and everything below it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """SIGSTOP now, SIGCONT at the end of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def gone(pid: int) -> None:
    async def look() -> bool:
        return not is_running(pid)

    await eventually(look, f"process {pid} is gone")
