"""Kill -9 what a model process and its worker rest on, in the middle of an invocation, an unload and a load.

The model process stands still while the other one dies and comes back, so that the fault falls into the middle of
what it does. None of these deaths ends a resident by itself: it goes on under its session, and is lost only where
that could not be renewed for a whole term.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from schemas.codes import Code
from schemas.serving import Answer
from tests.chaos.invariants import nothing_is_lost
from tests.chaos.loading import load_under_way
from tests.chaos.processes import stopped
from tests.chaos.report import recovered
from tests.chaos.system import TERMS, System, system
from tests.chaos.work import done_once

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
VICTIMS = ("control", "relay", "projector", "nats", "postgres")
ANSWER_S = 30.0
LATE_ANSWER_S = 2.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[System]:
    async with system(model=True) as made:
        yield made


async def an_invocation(running: System, victim: str) -> None:
    generation, child = await running.serves(), await running.child()
    with stopped([child]):
        waiting = asyncio.create_task(running.invoke(generation, ANSWER_S))
        await running.invocation_under_way()
        heard_ms, begun = await running.heartbeat_answered(), time.monotonic()
        await running.plane.killed(victim)
    if victim == "nats":  # the answer may find its way over the new connections, or be lost
        await asyncio.wait([waiting], timeout=LATE_ANSWER_S)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    else:
        answer = await waiting
        assert isinstance(answer, Answer)
        assert answer.generation == generation
    later = await running.recovered(f"{victim}, an invocation under way: kill -9", begun)
    if await running.kept(generation, later, heard_ms):
        assert await running.child() == child


async def an_unload(running: System, victim: str) -> None:
    generation, child = await running.serves(), await running.child()
    with stopped([child]):
        work_id = await running.job("unload")
        assert work_id is not None
        await running.leased(work_id)
        heard_ms, begun = await running.heartbeat_answered(), time.monotonic()
        await running.plane.killed(victim)
    row = await running.ended(work_id)
    await running.command_goes_the_whole_way()
    recovered(f"{victim}, an unload under way: kill -9", time.monotonic() - begun, TERMS)
    later = (await running.serving_session()).generation
    if await running.kept(generation, later, heard_ms):
        work = await done_once(running, work_id)
        assert [(grant.attempt, grant.generation) for grant in work.grants] == [(1, generation)]
        assert await running.residency() == "absent"
    else:
        assert (row.stage, row.code) == ("failed", Code.WORKER_LOST)


async def a_load(running: System, victim: str) -> None:
    generation = (await running.serving_session()).generation
    async with load_under_way(running) as (work_id, _):
        heard_ms, begun = await running.heartbeat_answered(), time.monotonic()
        await running.plane.killed(victim)
    work = await done_once(running, work_id)
    later = await running.recovered(f"{victim}, a load under way: kill -9", begun)
    if await running.kept(generation, later, heard_ms):
        assert {grant.generation for grant in work.grants} == {generation}


MOMENTS: dict[str, Callable[[System, str], Awaitable[None]]] = {
    "invoke": an_invocation,
    "unload": an_unload,
    "load": a_load,  # in this order each begins where the one before ended
}


@pytest.mark.parametrize("moment", MOMENTS)  # the fastest to change
@pytest.mark.parametrize("victim", VICTIMS)
async def test_in_the_middle(running: System, victim: str, moment: str) -> None:
    await MOMENTS[moment](running, victim)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)
