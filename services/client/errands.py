"""Errands: what is left to do when an invocation ended, for the worker's sake or the store's and not for the caller's.

An errand is bounded in time, and its failure changes nothing of the outcome. The caller waits for it, but not where the
caller's task is being cancelled: then it is done in the background, and whoever closes the client waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from schemas.codes import Refusal
from services.client.wire import NoResponder, Silent, Unreachable

ERRAND_SECONDS_MAX = 5.0


class Errands:
    """Of one client."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, errand: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(_quietly(errand))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if not _being_cancelled():
            await asyncio.wait({task})  # a cancel that comes now leaves the errand running

    async def done(self) -> None:
        """Wait for all that are under way."""
        while self._running:
            await asyncio.wait(set(self._running))


async def _quietly(errand: Coroutine[Any, Any, object]) -> None:
    with contextlib.suppress(NoResponder, Silent, Unreachable, Refusal, TimeoutError):
        async with asyncio.timeout(ERRAND_SECONDS_MAX):
            await errand


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
