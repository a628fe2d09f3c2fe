"""Ending tasks for certain.

`Task.cancel` only asks, and a library may swallow the request: the NATS client does so while it flushes a
publish. What must have ended before something else begins is asked again until it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

ASK_AGAIN_SECONDS = 0.2


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel and see them end, however they end. Results and exceptions are left for who wants them."""
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=ASK_AGAIN_SECONDS)
