"""The network between a worker and the bus goes away or slows down; the bus comes back with nothing in its store."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator

import nats.errors
import nats.js.errors
import pytest
import pytest_asyncio

from schemas import subjects
from schemas.codes import Code
from schemas.events import EvidenceRejected, SessionLost
from tests.chaos.invariants import nothing_is_lost
from tests.chaos.processes import gone, stopped
from tests.chaos.system import TERMS, System, system
from tests.chaos.waiting import eventually, found

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
SHORT_S = 2.0  # shorter than a session
SLOW_S = 0.15  # each way
UNANSWERED_S = 1.0
CONSUMERS = (
    (subjects.STREAM_COMMANDS, "control"),
    (subjects.STREAM_EVIDENCE, "control"),
    (subjects.STREAM_WORK, "worker-local"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[System]:
    async with system(model=True) as made:
        yield made


async def test_a_partition_ends_what_the_worker_holds_and_what_comes_late_does_not_count(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    with stopped([child]):
        work_id = await running.job("health")
        assert work_id is not None
        await running.leased(work_id)
        begun = time.monotonic()
        running.plane.proxy.hold()
    await gone(child)  # the worker hears nothing, and ends by its own clock what it holds
    with pytest.raises(nats.errors.Error):
        await running.invoke(generation, UNANSWERED_S)

    async def lost() -> bool:
        return any(event.generation == generation for event in await running.events(SessionLost))

    await eventually(lost, "the log says that the session is lost")
    running.plane.proxy.release()

    async def rejected() -> EvidenceRejected | None:
        seen = await running.events(EvidenceRejected)
        return next((event for event in seen if event.work_id == work_id), None)

    event = await found(rejected, "the late result is in the log as rejected")
    assert event.generation == generation
    assert event.reason in (Code.GENERATION_FENCED, Code.WORK_ENDED)  # before or after its successor registered
    assert (await running.ended(work_id)).code == Code.WORKER_LOST
    later = await running.recovered("worker cut off until its session is lost", begun)
    assert int(later) > int(generation)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_a_short_cut_costs_no_resident(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    begun = time.monotonic()
    running.plane.proxy.cut()
    await asyncio.sleep(SHORT_S)  # this is the fault, not a wait for anything
    running.plane.proxy.heal()
    assert await running.recovered(f"worker's connection: refused for {SHORT_S:g} s", begun) == generation
    assert await running.child() == child
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_a_slow_network_costs_no_session(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    running.plane.proxy.delay_s = SLOW_S
    try:
        await asyncio.sleep(TERMS["session_ms"] / 1_000 + 1.0)  # a whole term under the fault
        assert await running.serves() == generation
        work_id = await running.job("health")
        assert work_id is not None
        assert (await running.ended(work_id)).stage == "completed"
    finally:
        running.plane.proxy.delay_s = 0.0
    assert await running.child() == child
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_an_empty_jetstream_store_is_filled_from_the_log(running: System) -> None:
    """Work whose only offer was in the lost store is offered again by a beat."""
    await running.serves()
    await running.unloaded()
    worker, server = running.plane.pid("worker") or 0, running.plane.pid("nats") or 0
    async with running.plane.untended():
        with stopped([worker]):  # so that it cannot take the offer before the store is lost
            work_id = await running.job("load")
            assert work_id is not None
            begun = time.monotonic()
            os.kill(server, signal.SIGKILL)
            await gone(server)
            shutil.rmtree(running.plane.jetstream_store)
    assert (await running.ended(work_id)).stage == "completed"
    await running.recovered("nats: kill -9, and an empty JetStream store", begun)
    await eventually(lambda: _consumers_are_there(running), "every durable consumer is there again")
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def _consumers_are_there(running: System) -> bool:
    js = running.nc.jetstream()
    try:
        for stream, consumer in CONSUMERS:
            await js.consumer_info(stream, consumer)
    except (nats.errors.Error, nats.js.errors.Error, TimeoutError):
        return False
    return True
