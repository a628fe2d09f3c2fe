"""`python -m services.query`: answers on `tenure.query.v1.<table>`, as a NATS micro service."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import nats.micro
import psycopg
import psycopg_pool
import structlog

from schemas import subjects
from schemas.codes import ADVICE, Code
from schemas.queries import Query, QueryReply
from schemas.tokens import MESSAGE_BYTES_MAX
from services.bus import connect
from services.process import Stop, run_service
from services.query.heard import SILENCE, Heard
from services.query.reader import Reader
from services.settings import Settings

CONCURRENT_MAX = 64

log = structlog.get_logger()
_decode = msgspec.json.Decoder(Query).decode
_encode = msgspec.json.Encoder().encode


class QueryService:
    """Each request in a task of its own, at most CONCURRENT_MAX at once; beyond that OVERLOADED."""

    def __init__(self, reader: Reader, heard: Heard) -> None:
        self._reader = reader
        self._heard = heard
        self._running: set[asyncio.Task[None]] = set()

    async def on_request(self, request: Any) -> None:
        if len(self._running) >= CONCURRENT_MAX:
            await request.respond(_encode(_refused(Code.OVERLOADED, f"{CONCURRENT_MAX} queries are running")))
            return
        task = asyncio.create_task(self._answer(request))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, request: Any) -> None:
        table = request.subject[len(subjects.QUERY) + 1 :]
        try:
            query = _decode(request.data or b"{}")
            reply = self._heard.answer(query) if table == SILENCE else await self._reader.answer(table, query)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reply = _refused(Code.COMMAND_MALFORMED, str(error))
        except (psycopg.Error, psycopg_pool.PoolTimeout) as error:
            log.warning("query.unavailable", table=table, error=str(error))
            reply = _refused(Code.UNAVAILABLE, "the tables cannot be read now")
        body = _encode(reply)
        if len(body) > MESSAGE_BYTES_MAX:
            body = _encode(_refused(Code.MESSAGE_TOO_LARGE, "these rows do not fit one message; ask for fewer"))
        await request.respond(body)


def _refused(code: Code, message: str) -> QueryReply:
    return QueryReply(code=code, message=message, advice=ADVICE[code])


async def query(settings: Settings, stop: Stop) -> int:
    if settings.postgres_dsn is None:
        raise ValueError("TENURE_POSTGRES_DSN is not set and no embedded server is running")
    reader = Reader(settings.postgres_dsn)
    await reader.open()
    nc = await connect(settings, "tenure-query", stop)
    heard = Heard()
    await heard.listen(nc)
    answers = QueryService(reader, heard)

    service = await nats.micro.add_service(nc, name="tenure-query", version="1.0.0", description="queries")
    await service.add_endpoint(name="queries", subject=f"{subjects.QUERY}.>", handler=answers.on_request)
    try:
        await stop.wait()
    finally:
        await nc.close()
        await reader.close()
    return 0


if __name__ == "__main__":
    sys.exit(run_service("query", query))
