"""A control plane inside the test process: the production loops on real servers, without the processes.

`ControlPlane` runs writer, intake, relay, projector and query reader as tasks, so that a test can stop one
between two steps. Waiting is always for a condition, within WAIT_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import nats
from nats.aio.client import Client

import services.control.serve
from schemas import subjects
from schemas.replies import Reply
from services.clock import RandomIds, SystemClock
from services.control.serve import Terms
from services.eventlog.migrate import migrate
from services.eventlog.postgres import PostgresLog
from services.eventlog.tail import Tail
from services.projector.projector import Projector
from services.projector.store import ViewStore
from services.query.reader import Reader
from services.relay.relay import Relay
from worker.cancellation import end_tasks

WAIT_S = 20.0
TERMS = Terms(lease_ms=30_000, session_ms=10_000, beat_ms=1_000, queue_ms=600_000)


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until `condition` holds; fail naming `what` when it does not within WAIT_S."""
    async with contextlib.AsyncExitStack():
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_S
        while not await condition():
            if loop.time() > until:
                raise AssertionError(f"not within {WAIT_S} s: {what}")
            await asyncio.sleep(0.01)


class ControlPlane:
    def __init__(self, dsn: str, nats_url: str) -> None:
        self.dsn, self.nats_url = dsn, nats_url
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        await asyncio.to_thread(migrate, self.dsn)
        self.nc: Client = await nats.connect(self.nats_url)
        await self.start_writer()
        self.relay_log, self.projector_log = PostgresLog(self.dsn), PostgresLog(self.dsn)
        self.start_relay()
        self.store = ViewStore(self.dsn)
        await self.store.prepare()
        self.start_projector()
        self.reader = Reader(self.dsn)
        await self.reader.open()

    async def start_writer(self) -> None:
        self.log = PostgresLog(self.dsn)
        self.control = services.control.serve.ControlPlane(self.log, self.nc, SystemClock(), RandomIds(), TERMS, "test")
        await self.control.start()
        self.writer = self.control.writer
        self._run("writer", self.control.run())

    async def stop_writer(self) -> None:
        await self.cancel("writer")
        await self.log.close()

    def start_relay(self) -> None:
        self.relay = Relay(self.nc, Tail(self.relay_log))
        self._run("relay", self._begin(self.relay))

    def start_projector(self) -> None:
        self.projector = Projector(self.projector_log, Tail(self.projector_log), self.store, self.nc)
        self._run("projector", self.projector.run())

    async def cancel(self, *names: str) -> None:
        tasks = [self.tasks.pop(name) for name in names]
        await end_tasks(tasks)

    async def close(self) -> None:
        await self.cancel(*self.tasks)
        await self.nc.close()
        await self.reader.close()
        await self.store.close()
        for log in (self.log, self.relay_log, self.projector_log):
            await log.close()

    async def command(self, name: str, **fields: Any) -> Reply:
        body = {"command_id": uuid.uuid4().hex, "actor": "test", **fields}
        return await self.send(name, msgspec.json.encode(body))

    async def send(self, name: str, body: bytes) -> Reply:
        answer = await self.nc.request(subjects.rpc_subject(name), body, timeout=WAIT_S)
        return msgspec.json.decode(answer.data, type=Reply)

    def _run(self, name: str, work: Any) -> None:
        self.tasks[name] = asyncio.create_task(work, name=name)

    @staticmethod
    async def _begin(relay: Relay) -> None:
        await relay.start()
        await relay.run()


@contextlib.asynccontextmanager
async def control_plane(dsn: str, nats_url: str) -> AsyncIterator[ControlPlane]:
    plane = ControlPlane(dsn, nats_url)
    await plane.start()
    try:
        yield plane
    finally:
        await plane.close()
