"""Kill -9 in the middle of a claim: before it is there, while it is being decided, and when its answer is lost.

Whoever dies, nobody ever learns the token of a grant whose answer got lost. The work is claimed again, under the
next attempt, by the same worker or by its successor, and is done once.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec import json

from schemas.codes import Code
from schemas.replies import Reply
from tests.chaos import claiming
from tests.chaos.invariants import nothing_is_lost, whole
from tests.chaos.system import System, system
from tests.chaos.work import done_once, opened

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[System]:
    async with system(model=False) as made:
        yield made


async def test_a_worker_whose_claim_is_on_its_way(running: System) -> None:
    """The claim arrives after the successor of whoever sent it: it is refused, and the successor's counts."""
    generation = (await running.serving_session()).generation
    work_id = await claiming.held_at(running, claiming.CLAIM)
    command_id, begun = claiming.command_held(running), time.monotonic()
    await running.plane.killed("worker")
    later = (await running.serving_session(after=generation)).generation
    running.plane.proxy.release()
    work = await done_once(running, work_id)
    assert [grant.generation for grant in work.grants] == [later]
    async with opened(running) as log:
        receipt = (await log.receipts([command_id]))[command_id]
    assert json.decode(receipt.outcome, type=Reply).code is Code.GENERATION_FENCED
    await running.recovered("worker, a claim on its way: kill -9", begun)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


@pytest.mark.parametrize("victim", ["control", "relay", "projector", "nats", "postgres"])
async def test_who_a_claim_is_on_its_way_to(running: System, victim: str) -> None:
    """With the bus it is lost, and sent again until it is heard, as it is or as another; so it may be elsewhere too."""
    generation = (await running.serving_session()).generation
    heard_ms = await running.heartbeat_answered()
    work_id = await claiming.held_at(running, claiming.CLAIM)
    command_id, begun = claiming.command_held(running), time.monotonic()
    await running.plane.killed(victim)
    running.plane.proxy.release()
    work = await done_once(running, work_id)
    if await running.kept(generation, work.row.generation, heard_ms):
        assert {grant.generation for grant in work.grants} == {generation}
    async with opened(running) as log:
        known = await log.receipts([command_id])
    if victim in ("relay", "projector"):  # which have no part in it
        assert known.keys() == {command_id}
    await running.recovered(f"{victim}, a claim on its way: kill -9", begun)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


@pytest.mark.parametrize("victim", ["worker", "control", "relay", "projector", "nats", "postgres"])
async def test_a_claim_that_is_being_decided(running: System, victim: str) -> None:
    generation = (await running.serving_session()).generation
    heard_ms = await running.heartbeat_answered()
    async with claiming.being_decided(running) as work_id:
        begun = time.monotonic()
        again = running.plane.killed(victim)
    await again
    work = await done_once(running, work_id)
    assert len(work.grants) <= 2
    if victim == "worker":
        assert int(work.row.generation) > int(generation)
    elif await running.kept(generation, work.row.generation, heard_ms):
        assert {grant.generation for grant in work.grants} == {generation}
    await running.recovered(f"{victim}, a claim being decided: kill -9", begun)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


@pytest.mark.parametrize("victim", ["worker", "control", "nats", "postgres"])
async def test_a_claim_whose_answer_is_lost(running: System, victim: str) -> None:
    generation = (await running.serving_session()).generation
    heard_ms = await running.heartbeat_answered()
    work_id = await claiming.held_at(running, claiming.TOKEN)
    token, begun = claiming.token_held(running), time.monotonic()
    again = running.plane.killed(victim)
    running.plane.proxy.cut()  # what waits is lost
    await again
    running.plane.proxy.heal()
    running.plane.proxy.release()
    work = await done_once(running, work_id)
    assert work.row.attempt == 2
    went_on = victim != "worker" and await running.kept(generation, work.row.generation, heard_ms)
    if not went_on:
        assert int(work.row.generation) > int(generation)
    cause = Code.LEASE_ENDED if went_on else Code.WORKER_LOST  # its holder asked again, or is gone
    assert [end.cause for end in work.ends] == [cause]
    async with opened(running) as log:
        assert not [row for row in await whole(log) if token in row.state]
    await running.recovered(f"{victim}, a claim's answer lost: kill -9", begun)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)
