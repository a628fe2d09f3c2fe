"""Kill -9 each process of a running plane under load: no accepted command and no event is lost.

Real servers, real processes. Commands keep coming while a process dies and is started again. Afterwards every
command that was accepted (or whose durable publish was acknowledged) is in the log under its own receipt,
EVENTS holds the log, and the tables are its fold.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.chaos.invariants import nothing_is_lost
from tests.chaos.load import Load
from tests.chaos.system import System, system

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
UNDER_LOAD = 40  # commands accepted before the kill, and again after it
VICTIMS = ("control", "relay", "projector", "query", "worker", "nats", "postgres")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[System]:
    async with system(model=False) as made:
        yield made


@pytest.mark.parametrize("victim", VICTIMS)
async def test_killing_one_process_loses_nothing(running: System, victim: str) -> None:
    load = Load(running.nc)
    await load.more(UNDER_LOAD)
    generation = (await running.serving_session()).generation
    begun = time.monotonic()
    await running.plane.killed(victim)
    if victim == "worker":
        await running.serving_session(after=generation)
    await running.recovered(f"{victim}: kill -9", begun)
    await load.more(UNDER_LOAD)
    await load.end()
    await nothing_is_lost(running.plane.postgres_dsn, running.nc, load)
