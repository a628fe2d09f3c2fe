"""`python -m services.control`: a control plane, active or standing by.

Ends with exit code 5 when another one took over; whoever keeps processes running starts it again, and it
stands by.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import structlog

from services.bus import connect
from services.clock import RandomIds, SystemClock
from services.control.payloads import PayloadStores
from services.control.serve import ControlPlane, Terms
from services.eventlog.port import Superseded
from services.eventlog.postgres import PostgresLog
from services.process import Stop, run_service, until_stopped
from services.settings import Settings
from worker.cancellation import end_tasks

EXIT_SUPERSEDED = 5

log = structlog.get_logger()


async def control(settings: Settings, stop: Stop) -> int:
    if settings.postgres_dsn is None:
        raise ValueError("TENURE_POSTGRES_DSN is not set and no embedded server is running")
    eventlog = PostgresLog(settings.postgres_dsn)
    nc = await connect(settings, "tenure-control", stop)
    terms = Terms(
        settings.lease_ms, settings.session_ms, settings.beat_ms, leader_ms=settings.leader_ms,
        device_reserve_bytes=settings.device_reserve_bytes,
    )  # fmt: skip
    plane = ControlPlane(eventlog, nc, SystemClock(), RandomIds(), terms, settings.instance)

    async def serve() -> None:
        await plane.start()
        payloads = asyncio.create_task(PayloadStores(nc, lambda: plane.folded.world.fleet.nodes).run(), name="payloads")
        try:
            await plane.run()
        finally:
            await end_tasks([payloads])

    try:
        await until_stopped(serve(), stop)
    except Superseded as error:
        log.error("control.superseded", error=str(error))
        return EXIT_SUPERSEDED
    finally:
        with contextlib.suppress(Exception):
            await nc.close()
        await eventlog.close()
    return 0


if __name__ == "__main__":
    sys.exit(run_service("control", control))
