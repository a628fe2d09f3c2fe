"""Ending tasks for certain, and each thing for itself.

`Task.cancel` only asks, and a library may swallow the request: the NATS client does so while it flushes a
publish. What must have ended before something else begins is asked again until it has. And where many things are to be
ended, one that fails must not keep the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import structlog

ASK_AGAIN_SECONDS = 0.2
_log = structlog.get_logger(__name__)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel and see them end, however they end. Results and exceptions are left for who wants them."""
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=ASK_AGAIN_SECONDS)


async def logged(what: str, step: Coroutine[Any, Any, None]) -> None:
    """Take one step of ending. What goes wrong is logged, and the next steps can be taken all the same."""
    try:
        await step
    except Exception:  # noqa: BLE001 - whatever it is, it is no reason to leave the rest running
        _log.exception("not_ended_in_order", what=what)
