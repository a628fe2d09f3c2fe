"""Serving jobs as clients ask for them, through real processes, real servers and a real model.

Two who ask at once, an unload that comes while invocations are under way, and a load right after an unload: what
one of them is told holds for all, and what is told to be over is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from projections.rows import WorkRow
from schemas.codes import Code
from schemas.events import LeaseGranted, WorkCompleted, WorkRequested
from schemas.serving import Answer, Failure
from services.cli.screen.terminal import Terminal
from services.cli.serve.deployment import do
from services.client import Client
from tests.chaos.processes import stopped
from tests.chaos.system import NODE, System, system
from tests.chaos.waiting import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
AT_ONCE = 6


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[System]:
    async with system(model=True) as made:
        yield made


async def ask(running: System, verb: str) -> WorkRow | None:
    """What `tenure load` and its like do, over a connection of their own."""
    async with await Client.connect(running.plane.settings, "somebody") as client:
        return await do(client, Terminal(as_json=True), running.deployed, NODE, verb)


async def test_two_loads_at_once_load_once_and_both_get_the_result(running: System) -> None:
    await running.serves()
    await ask(running, "unload")
    before = len(await running.events(WorkRequested))
    first, second = await asyncio.gather(ask(running, "load"), ask(running, "load"))
    assert first is not None
    assert second is not None
    assert (first.id, first.stage, first.result) == (second.id, "completed", second.result)
    assert first.result["child_pid"] == await running.child()
    assert len(await running.events(WorkRequested)) == before + 1
    for kind in (LeaseGranted, WorkCompleted):
        assert len([event for event in await running.events(kind) if event.work_id == first.id]) == 1
    assert await ask(running, "load") is None  # it holds already: no third one either


async def test_an_unload_lets_what_is_under_way_end_and_refuses_what_comes_late(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    with stopped([child]):
        asked = [asyncio.create_task(running.invoke(generation, 30.0)) for _ in range(AT_ONCE)]
        await running.invocation_under_way(AT_ONCE)
        work_id = await running.job("unload")
        assert work_id is not None

        async def draining() -> bool:
            live = await running.live()
            return live is not None and [resident.entry.state for resident in live.residents] == ["draining"]

        await eventually(draining, "the unload waits for what is under way")
        late = await running.invoke(generation)
        assert isinstance(late, Failure)
        assert late.code in (Code.DRAINING, Code.NOT_RESIDENT)
        assert late.advice
    assert all(isinstance(answer, Answer) for answer in await asyncio.gather(*asked))
    work = await running.ended(work_id)
    assert not psutil.pid_exists(child)  # before anybody was told
    assert work.stage == "completed"
    memory = work.result["memory"]
    assert memory["reclaim_complete"]
    assert memory["process_after"]["bytes"] == 0
    assert memory["reclaimed"]["bytes"] > 0
    answer = await running.invoke(generation)
    assert isinstance(answer, Failure)
    assert answer.code is Code.NOT_RESIDENT


async def test_a_load_right_after_an_unload_finds_its_memory(running: System) -> None:
    await running.serves()
    for _ in range(2):
        unloaded, loaded = await ask(running, "unload"), await ask(running, "load")
        assert unloaded is not None
        assert loaded is not None
        assert loaded.result["health"]["capability"]
