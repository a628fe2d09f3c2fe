"""`python -m services.projector`. With `--rebuild` the tables are made anew from the log first."""

from __future__ import annotations

import sys

from services.bus import announce, connect
from services.eventlog.postgres import PostgresLog
from services.eventlog.tail import Tail
from services.process import Stop, run_service, until_stopped
from services.projector.projector import Projector
from services.projector.store import ViewStore
from services.settings import Settings


async def projector(settings: Settings, stop: Stop) -> int:
    if settings.postgres_dsn is None:
        raise ValueError("TENURE_POSTGRES_DSN is not set and no embedded server is running")
    log, store = PostgresLog(settings.postgres_dsn, in_loop=True), ViewStore(settings.postgres_dsn)
    nc = await connect(settings, "tenure-projector", stop)
    await store.prepare(rebuild="--rebuild" in sys.argv[1:])
    tail = Tail(log)
    await tail.listen(nc)
    await announce(nc, "tenure-projector")
    try:
        await until_stopped(Projector(log, tail, store, nc).run(), stop)
    finally:
        await nc.close()
        await store.close()
        await log.close()
    return 0


if __name__ == "__main__":
    sys.exit(run_service("projector", projector))
