"""Waiting for a condition, with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

WAIT_S = 60.0
LOOK_S = 0.05

T = TypeVar("T")


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until it holds; fail naming `what` when it does not within WAIT_S."""
    loop = asyncio.get_running_loop()
    until = loop.time() + WAIT_S
    while not await condition():
        if loop.time() > until:
            raise AssertionError(f"not within {WAIT_S} s: {what}")
        await asyncio.sleep(LOOK_S)


async def found(look: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Wait until `look` gives something."""
    kept: list[T] = []

    async def once() -> bool:
        seen = await look()
        if seen is None:
            return False
        kept.append(seen)
        return True

    await eventually(once, what)
    return kept[0]
