"""psycopg's connection pool, made to find a database that is back within LOOK_AGAIN_S.

By itself a pool looks again after 1, 2, 4, 8, … seconds, so that a database seems away for up to twice as long as it
was. Few processes of ours share one database, so a steady look costs it little. `psycopg_pool` has no setting for
this; what is replaced here is the one place where it decides how long to wait.
"""

from __future__ import annotations

from typing import Any

from psycopg_pool import AsyncConnectionPool
from psycopg_pool.base import AttemptWithBackoff

LOOK_AGAIN_S = 0.25


class _Steady(AttemptWithBackoff):
    def update_delay(self, now: float) -> None:
        super().update_delay(now)
        self.delay = min(self.delay, LOOK_AGAIN_S)


class SteadyPool(AsyncConnectionPool[Any]):
    async def _add_connection(self, attempt: AttemptWithBackoff | None, growing: bool = False) -> None:
        await super()._add_connection(attempt or _Steady(timeout=self.reconnect_timeout), growing)
