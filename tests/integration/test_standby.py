"""Two control planes on one log: one is active, the other takes over when it falls silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import nats
import pytest
from nats.aio.client import Client

from schemas import subjects
from schemas.replies import Reply
from services.clock import RandomIds, SystemClock
from services.control.serve import ControlPlane, Terms
from services.eventlog.migrate import migrate
from services.eventlog.port import Superseded
from services.eventlog.postgres import PostgresLog
from worker.cancellation import end_tasks

SHA = "ab" * 32
WAIT_S = 20.0
TERMS = Terms(lease_ms=30_000, session_ms=10_000, beat_ms=1_000, leader_ms=1_000)


class Instance:
    """A control plane with a connection and a log of its own, as a process would have."""

    def __init__(self, name: str, dsn: str, nats_url: str) -> None:
        self.name, self._dsn, self._nats_url = name, dsn, nats_url

    async def open(self) -> None:
        self.nc: Client = await nats.connect(self._nats_url)
        self.log = PostgresLog(self._dsn)
        self.plane = ControlPlane(self.log, self.nc, SystemClock(), RandomIds(), TERMS, self.name)
        self.active = asyncio.Event()
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        await self.plane.start()
        self.active.set()
        await self.plane.run()

    async def close(self) -> None:
        await end_tasks([self.task])
        await self.nc.close()
        await self.log.close()


@pytest.fixture
async def instances(postgres_dsn: str, nats_url: str) -> AsyncIterator[tuple[Instance, Instance]]:
    await asyncio.to_thread(migrate, postgres_dsn)
    first, second = Instance("first", postgres_dsn, nats_url), Instance("second", postgres_dsn, nats_url)
    await first.open()
    await asyncio.wait_for(first.active.wait(), WAIT_S)
    await second.open()
    yield first, second
    for instance in (first, second):
        await instance.close()


async def enrol(nc: Client, node_id: str) -> Reply:
    body = {"command_id": f"c-{node_id}", "actor": "t", "node_id": node_id, "credential_sha256": SHA}
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(nats.errors.NoRespondersError, nats.errors.TimeoutError):
                answer = await nc.request("tenure.rpc.v1.node.enrol", msgspec.json.encode(body), timeout=1)
                return msgspec.json.decode(answer.data, type=Reply)


async def test_the_second_stands_by_while_the_first_lives(instances: tuple[Instance, Instance]) -> None:
    first, second = instances
    assert (await enrol(first.nc, "n1")).outcome == "accepted"
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(second.active.wait(), 3 * TERMS.leader_ms / 1000)
    assert not second.active.is_set()
    assert (await first.log.leader()).holder == "first"


async def test_the_second_takes_over_from_a_dead_first_and_knows_everything(
    instances: tuple[Instance, Instance],
) -> None:
    first, second = instances
    accepted = await enrol(second.nc, "n1")
    await first.close()
    await asyncio.wait_for(second.active.wait(), WAIT_S)
    again = await enrol(second.nc, "n1")
    assert (again.repeated, again.position) == (True, accepted.position)
    assert (await enrol(second.nc, "n2")).outcome == "accepted"


async def test_a_first_that_was_only_silent_finds_its_epoch_over(instances: tuple[Instance, Instance]) -> None:
    first, second = instances
    epoch = await second.log.take_epoch("second")  # as the second would, had the first been silent for a term
    assert epoch == first.plane.leadership.epoch + 1
    with pytest.raises(Superseded):
        await asyncio.wait_for(first.task, WAIT_S)
    assert (await enrol(second.nc, "n1")).outcome == "accepted"


async def test_a_leader_that_cannot_renew_answers_no_heartbeat(instances: tuple[Instance, Instance]) -> None:
    first, _ = instances
    beat = {"node_id": "n1", "generation": "1", "boot_id": "b", "inventory_digest": SHA, "unconfirmed": []}
    answer = await first.nc.request(subjects.beat_subject("n1"), msgspec.json.encode(beat), timeout=5)
    assert msgspec.json.decode(answer.data)["fenced"] is True
    first.plane.leadership._until_s = 0.0  # its term is over and no renewal came through
    with pytest.raises(nats.errors.TimeoutError):
        await first.nc.request(subjects.beat_subject("n1"), msgspec.json.encode(beat), timeout=0.2)
