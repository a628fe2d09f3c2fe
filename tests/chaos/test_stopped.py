"""SIGSTOP and SIGCONT: a process that stands still for a while and then goes on as if nothing had happened.

That is harder than a death: it believes what was true before. A control plane finds its epoch over and ends itself,
a worker finds its term over and ends what it holds; the others go on from where the log is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import nats.errors
import pytest
import pytest_asyncio

from schemas.codes import Code
from schemas.events import SessionLost
from services.control.__main__ import EXIT_SUPERSEDED
from tests.chaos.invariants import nothing_is_lost
from tests.chaos.load import Load
from tests.chaos.plane import STANDBY
from tests.chaos.processes import gone, stopped, tree
from tests.chaos.system import System, system
from tests.chaos.waiting import eventually, found

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
UNDER_LOAD = 20
SHORT_S = 2.0  # shorter than a session
UNANSWERED_S = 2.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[System]:
    async with system(model=True) as made:
        yield made


@pytest.mark.parametrize(
    "victim", ["control", "relay", "projector", "query", "nats", "postgres", "worker", "model process"]
)
async def test_a_short_stop_loses_nothing_and_no_resident(running: System, victim: str) -> None:
    """A control plane that nobody stands by for finds nothing changed; a worker stops with its model process."""
    generation, child = await running.serves(), await running.child()
    load = Load(running.nc)
    await load.more(UNDER_LOAD)
    heard_ms, begun = await running.heartbeat_answered(), time.monotonic()
    with stopped([child] if victim == "model process" else tree(running.plane.pid(victim) or 0)):
        await asyncio.sleep(SHORT_S)  # this is the fault, not a wait for anything
    later = await running.recovered(f"{victim}: stopped for {SHORT_S:g} s", begun)
    await load.more(UNDER_LOAD)
    await load.end()
    if await running.kept(generation, later, heard_ms):
        assert await running.child() == child
    await nothing_is_lost(running.plane.postgres_dsn, running.nc, load)


async def test_a_worker_that_was_stopped_for_longer_than_its_session(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    begun = time.monotonic()

    async def lost() -> SessionLost | None:
        seen = await running.events(SessionLost)
        return next((event for event in seen if event.generation == generation), None)

    with stopped([running.plane.pid("worker") or 0]):
        waiting = asyncio.create_task(running.invoke(generation, 60.0))
        event = await found(lost, "the log says that the session is lost")
    assert event.cause == Code.WORKER_LOST
    await gone(child)  # the worker itself has ended it; nobody else knows of it
    later = await running.recovered("worker: stopped until its session is lost", begun)
    assert int(later) > int(generation)
    done, _ = await asyncio.wait([waiting], timeout=UNANSWERED_S)
    assert not done or isinstance(waiting.exception(), nats.errors.Error)  # it went on, and did not answer
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_a_control_plane_that_was_stopped_finds_another_one_active(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    await running.plane.add_standby()
    first = await running.log.leader()
    load = Load(running.nc)
    await load.more(UNDER_LOAD)
    begun, old = time.monotonic(), running.plane.pid("control")
    with stopped([old or 0]):

        async def taken() -> bool:
            return (await running.log.leader()).holder == STANDBY

        await eventually(taken, "the standby has taken over")
        assert await running.recovered("control: stopped, a standby takes over", begun) == generation
        await load.more(UNDER_LOAD)  # the bus gives the stopped one none of them

    async def ended() -> bool:
        return ("control", EXIT_SUPERSEDED) in _ends(running)

    await eventually(ended, "the old one ends itself, superseded")

    async def again() -> bool:
        return running.plane.pid("control") not in (None, old)

    await eventually(again, "it is started again")
    await load.more(UNDER_LOAD)
    second = await running.log.leader()
    assert (second.epoch, second.holder) == (first.epoch + 1, STANDBY)  # it stands by, and took nothing back
    await running.heartbeat_answered()  # two takeovers without one between them would be one long silence
    begun = time.monotonic()
    running.plane.kill(STANDBY)
    await running.plane.remove_standby()
    assert await running.recovered("control, active of two: kill -9", begun) == generation
    await load.more(UNDER_LOAD)
    await load.end()
    assert await running.child() == child  # two takeovers, and the resident went on serving
    assert (await running.log.leader()).holder == first.holder
    await nothing_is_lost(running.plane.postgres_dsn, running.nc, load)


def _ends(running: System) -> list[tuple[str, int]]:
    """Which processes ended by themselves, and with which exit code."""
    words = [(name, what.split()) for name, what in running.plane.told]
    return [(name, int(said[2].rstrip(";,"))) for name, said in words if said[:2] == ["ended", "with"]]
