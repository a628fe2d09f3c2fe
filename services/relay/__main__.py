"""`python -m services.relay`."""

from __future__ import annotations

import sys

from services.bus import announce, connect
from services.eventlog.postgres import PostgresLog
from services.eventlog.tail import Tail
from services.process import Stop, run_service, until_stopped
from services.relay.relay import Relay
from services.settings import Settings


async def relay(settings: Settings, stop: Stop) -> int:
    if settings.postgres_dsn is None:
        raise ValueError("TENURE_POSTGRES_DSN is not set and no embedded server is running")
    log = PostgresLog(settings.postgres_dsn, in_loop=True)
    nc = await connect(settings, "tenure-relay", stop)
    service = Relay(nc, Tail(log))
    await service.start()
    await announce(nc, "tenure-relay")
    try:
        await until_stopped(service.run(), stop)
    finally:
        await nc.close()
        await log.close()
    return 0


if __name__ == "__main__":
    sys.exit(run_service("relay", relay))
