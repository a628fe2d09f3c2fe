"""Ending processes that a dead supervisor of ours left on a data folder.

Which processes those are is the caller's to say, exactly: by the folder they work in, never by name alone. They are
found anew on each look, so a pid that was given to somebody else meanwhile is not signalled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from signal import Signals

import psutil

from services.embedded.child import POLL_S

WAIT_S = 10.0  # after each signal


def matching(name: str, test: Callable[[psutil.Process], bool]) -> Iterator[psutil.Process]:
    """Living processes whose name begins with `name` and that pass `test`. Those we may not look at are not ours."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.name().startswith(name) and test(process):
                yield process


async def end(find: Callable[[], list[psutil.Process]], signals: Sequence[Signals]) -> list[int]:
    """Send each signal in turn, with `WAIT_S` after it, until nothing is found; the pids that are still there."""
    left = find()
    for number in signals:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        deadline = time.monotonic() + WAIT_S
        while left and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
            left = find()
        if not left:
            break
    return [process.pid for process in left]
