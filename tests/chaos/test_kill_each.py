"""Kill -9 each process of a running plane under load: no accepted command and no event is lost.

Real servers, real processes. Commands keep coming while a process dies and is started again. Afterwards every
command that was accepted (or whose durable publish was acknowledged) is in the log under its own receipt,
EVENTS holds the log, and the tables are its fold.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client

from schemas import subjects
from schemas.replies import Reply
from services.audit import replay
from services.embedded.nats_conf import CONTROL
from services.embedded.plane import Plane
from services.eventlog.port import LogRow
from services.eventlog.postgres import PostgresLog
from services.settings import Settings

SHA = "ab" * 32
WAIT_S = 60.0
REQUEST_S = 2.0
SENDINGS_MAX = 60
UNDER_LOAD = 40  # commands accepted before the kill, and again after it
VICTIMS = ("control", "relay", "projector", "query", "worker", "nats", "postgres")


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    with tempfile.TemporaryDirectory(prefix="tenure-chaos-", ignore_cleanup_errors=True) as folder:
        async with Plane(Settings(data_dir=Path(folder), log_level="warning")) as made:
            yield made


class Load:
    """Sends commands one after another until told to stop, each until it has an outcome."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self.accepted: dict[str, int] = {}
        self.durable: set[str] = set()
        self.stop = asyncio.Event()

    async def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            await self._request(f"rpc-{number}")
            await self._publish(f"cmd-{number}")

    async def _request(self, ident: str) -> None:
        body = self._body(ident)
        for _ in range(SENDINGS_MAX):
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                answer = await self._nc.request(subjects.rpc_subject("node.enrol"), body, timeout=REQUEST_S)
                reply = msgspec.json.decode(answer.data, type=Reply)
                if reply.outcome == "accepted":
                    self.accepted[ident] = reply.position or 0
                    return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{ident} got no outcome in {SENDINGS_MAX} sendings")

    async def _publish(self, ident: str) -> None:
        for _ in range(SENDINGS_MAX):
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError):
                await self._nc.jetstream().publish(f"{subjects.CMD}.node.enrol", self._body(ident), timeout=REQUEST_S)
                self.durable.add(ident)
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{ident} was not acknowledged in {SENDINGS_MAX} sendings")

    @staticmethod
    def _body(ident: str) -> bytes:
        return msgspec.json.encode({"command_id": ident, "actor": "chaos", "node_id": ident, "credential_sha256": SHA})


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + WAIT_S
    while not await condition():
        if loop.time() > until:
            raise AssertionError(f"not within {WAIT_S} s: {what}")
        await asyncio.sleep(0.05)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", VICTIMS)
async def test_killing_one_process_loses_nothing(plane: Plane, victim: str) -> None:
    user, password = plane.nats_login(CONTROL)
    nc = await nats.connect(
        plane.nats_url, user=user, password=password, max_reconnect_attempts=-1, reconnect_time_wait=0.1,
        error_cb=_unheard,
    )  # fmt: skip
    load = Load(nc)
    task = asyncio.create_task(load.run())

    def sent(more_than: int) -> Callable[[], Awaitable[bool]]:
        async def enough() -> bool:
            if task.done():
                task.result()
            return len(load.accepted) > more_than

        return enough

    await eventually(sent(UNDER_LOAD), "commands are accepted before the kill")
    before = plane.pid(victim)
    plane.kill(victim)

    async def again() -> bool:
        return plane.pid(victim) not in (None, before)

    await eventually(again, f"{victim} runs again")
    await eventually(sent(len(load.accepted) + UNDER_LOAD), "commands are accepted after the kill")
    load.stop.set()
    await asyncio.wait_for(task, WAIT_S)
    await nothing_is_lost(plane, nc, load)
    await nc.close()


async def nothing_is_lost(plane: Plane, nc: Client, load: Load) -> None:
    log = PostgresLog(plane.postgres_dsn)
    wanted = [*load.accepted, *load.durable]

    async def receipted() -> bool:
        return len(await log.receipts(wanted)) == len(wanted)

    await eventually(receipted, "every accepted and every acknowledged command has a receipt")
    receipts = await log.receipts(wanted)
    assert {ident: receipts[ident].position for ident in load.accepted} == load.accepted
    rows: list[LogRow] = []
    while batch := await log.read(rows[-1].position if rows else 0, 5_000):
        rows += batch
    enrolled = {row.stream.removeprefix("node-") for row in rows if row.topic == "node.enrolled.v1"}
    assert enrolled >= set(wanted)
    await eventually(lambda: _same_events(nc, rows), "EVENTS holds the log")

    async def projected() -> bool:
        report = await replay(plane.postgres_dsn)
        assert not report.violations
        return report.consistent and report.position == report.projected_position

    await eventually(projected, "the tables are the fold of the log")
    await log.close()


async def _same_events(nc: Client, rows: list[LogRow]) -> bool:
    """Whether EVENTS holds exactly these rows: each position once, in order, the same bytes."""
    js = nc.jetstream()
    try:
        info = await js.stream_info(subjects.STREAM_EVENTS)
        if info.state.messages < len(rows):
            return False
        subscription = await js.subscribe(f"{subjects.EVT}.>", ordered_consumer=True)
        got = [await subscription.next_msg(timeout=5) for _ in rows]
        await subscription.unsubscribe()
    except (nats.errors.Error, nats.js.errors.Error, TimeoutError):
        return False
    positions = [int((message.headers or {})[subjects.HEADER_POSITION]) for message in got]
    assert positions == [row.position for row in rows]
    assert [message.data for message in got] == [row.state for row in rows]
    return True


async def _unheard(error: Exception) -> None:
    """Errors are expected here; what matters is asserted at the end."""
