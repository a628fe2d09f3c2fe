"""`python -m services.control`: the control plane.

Order at start: reach Postgres and NATS (bounded), become the writer, fold the log, then listen. From the
moment it listens it answers from the whole log. It ends with exit code 5 when another writer took over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from typing import NamedTuple

import nats.micro
import structlog

from domain.world import Limits
from schemas import subjects
from services.bus import connect, ensure_streams
from services.clock import RandomIds, SystemClock
from services.control.durable import DurableReader
from services.control.folded import Folded
from services.control.intake import Intake
from services.control.offers import Announcer
from services.control.sessions import Sessions
from services.control.writer import Submission, Writer
from services.eventlog.port import Superseded
from services.eventlog.postgres import PostgresLog
from services.process import run_service
from services.settings import Settings

TICK_S = 0.25
QUEUE_LIMIT_MS = 600_000  # how long work may wait for its first claim
EXIT_SUPERSEDED = 5

log = structlog.get_logger()


class Terms(NamedTuple):
    lease_ms: int
    session_ms: int
    beat_ms: int
    queue_ms: int


async def control(settings: Settings, stop: asyncio.Event) -> int:
    if settings.postgres_dsn is None:
        raise ValueError("TENURE_POSTGRES_DSN is not set and no embedded server is running")
    eventlog = PostgresLog(settings.postgres_dsn)
    nc = await connect(settings, "tenure-control")
    await ensure_streams(nc)
    limits: Limits = Terms(settings.lease_ms, settings.session_ms, settings.beat_ms, QUEUE_LIMIT_MS)
    clock, ids = SystemClock(), RandomIds()
    epoch = await eventlog.take_epoch(f"{socket.gethostname()}:{os.getpid()}")
    folded = Folded(eventlog, ids, limits)
    read = await folded.replay(lambda position: log.info("control.replaying", position=position))
    log.info("control.ready", epoch=epoch, events=read, position=folded.position, stale=folded.stale)
    writer = Writer(eventlog, folded, clock, epoch, Announcer(nc))
    sessions = Sessions(folded.world.fleet, limits, clock, ids)
    intake = Intake(writer, sessions, folded.world.fleet)
    service = await nats.micro.add_service(nc, name="tenure-control", version="1.0.0", description="commands")
    await service.add_endpoint(name="commands", subject=f"{subjects.RPC}.>", handler=intake.on_rpc)
    await nc.subscribe(f"{subjects.BEAT}.*", cb=intake.on_beat)
    tasks = [
        asyncio.create_task(writer.run(), name="writer"),
        asyncio.create_task(_tick(writer, sessions), name="clock"),
        asyncio.create_task(
            DurableReader(nc, subjects.STREAM_COMMANDS, f"{subjects.CMD}.>", intake.on_durable).run(), name="commands"
        ),
        asyncio.create_task(
            DurableReader(nc, subjects.STREAM_EVIDENCE, f"{subjects.EVIDENCE}.>", intake.on_evidence).run(),
            name="evidence",
        ),
        asyncio.create_task(stop.wait(), name="stop"),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return 0
    except Superseded as error:
        log.error("control.superseded", error=str(error))
        return EXIT_SUPERSEDED
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await nc.close()
        await eventlog.close()


async def _tick(writer: Writer, sessions: Sessions) -> None:
    async def unheard(reply: object) -> None:
        return None

    while True:
        for command in sessions.due():
            await writer.submit(Submission(command, unheard, receipt=False))
        await asyncio.sleep(TICK_S)


if __name__ == "__main__":
    sys.exit(run_service("control", control))
