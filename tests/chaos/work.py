"""What the log says of one work item, and what it must say of one that was done: once, by its newest attempt."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from projections.rows import WorkRow
from schemas.events import Event, LeaseEnded, LeaseGranted, WorkCompleted, decode_event
from services.eventlog.postgres import PostgresLog
from tests.chaos.invariants import whole
from tests.chaos.system import System


class Work:
    def __init__(self, row: WorkRow, events: list[Event]) -> None:
        self.row = row
        self.grants = [event for event in events if isinstance(event, LeaseGranted)]
        self.ends = [event for event in events if isinstance(event, LeaseEnded)]
        self.completions = [event for event in events if isinstance(event, WorkCompleted)]


@contextlib.asynccontextmanager
async def opened(running: System) -> AsyncIterator[PostgresLog]:
    """The log, on a connection of its own: one from before PostgreSQL was killed is of no use."""
    log = PostgresLog(running.plane.postgres_dsn)
    try:
        yield log
    finally:
        await log.close()


async def done_once(running: System, work_id: str) -> Work:
    """Wait until the work has ended: completed, once, by the newest of attempts that followed each other."""
    row = await running.ended(work_id)
    async with opened(running) as log:
        rows = [found for found in await whole(log) if found.stream == f"work-{work_id}"]
    work = Work(row, [decode_event(found.topic, found.state) for found in rows])
    assert row.stage == "completed", row
    assert [grant.attempt for grant in work.grants] == list(range(1, row.attempt + 1))
    assert len(work.completions) == 1
    last, done = work.grants[-1], work.completions[0]
    assert (done.attempt, done.generation) == (last.attempt, last.generation)
    return work
