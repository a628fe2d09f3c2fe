"""psycopg's connections with an end to every wait.

The bounds in `options` end a connection that leads nowhere. They do not end a wait for a server that is there and does
not answer: one that was stopped, whose disk stands still, or where a lock is held. psycopg waits for that without end;
but it looks up ten times a second, and that is where these stop it. The connection is closed then, since nobody can
tell what of the call was done.
"""

from __future__ import annotations

import math
import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

RV = TypeVar("RV")


class Silence(psycopg.OperationalError):
    """The server has said nothing for too long. What it was asked may be done, or may be done later."""


class BoundedConnection(psycopg.Connection[Any]):
    """Waits until `until_s` (time.monotonic), or for `silence_s` after the last byte that moved where that is later."""

    until_s = math.inf
    silence_s = math.inf

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        try:
            return super().wait(_bounded(gen, self.until_s, self.silence_s), *args, **kwargs)
        except Silence:
            self.close()
            raise


class BoundedAsyncConnection(psycopg.AsyncConnection[Any]):
    """Waits for `silence_s` after the last byte that moved."""

    silence_s = math.inf

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        until_s = time.monotonic() + self.silence_s
        try:
            return await super().wait(_bounded(gen, until_s, self.silence_s), *args, **kwargs)
        except Silence:
            await self.close()
            raise


def _bounded(gen: PQGen[RV], until_s: float, silence_s: float) -> PQGen[RV]:
    """`gen`, with Silence raised where it still waits at `until_s`. Each byte that moves puts that off."""
    begun_s = time.monotonic()
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            now_s = time.monotonic()
            if ready:
                until_s = max(until_s, now_s + silence_s)
            elif now_s >= until_s:
                raise Silence(f"no answer from PostgreSQL in {now_s - begun_s:.1f} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        value: RV = end.value
        return value
