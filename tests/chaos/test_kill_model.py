"""Kill -9 a model process, and a worker that holds one, at each stage of its life.

What held dies with its owner, the log says so, whoever asks is refused at once, and loading again works. What a dead
generation had still under way arrives late, is rejected, and is kept with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator

import nats.errors
import psutil
import pytest
import pytest_asyncio

from domain.circuits import ENDS_MAX
from schemas.codes import Code
from schemas.events import CircuitOpened, EvidenceRejected, ResidencyChanged
from schemas.serving import Failure
from services.cli.look.ps import holdings
from services.client import Client
from services.client.live import Holding
from tests.chaos.claiming import CLAIM
from tests.chaos.invariants import nothing_is_lost
from tests.chaos.loading import load_under_way
from tests.chaos.processes import gone, stopped
from tests.chaos.system import NODE, TERMS, System, system
from tests.chaos.waiting import eventually, found
from tests.chaos.work import done_once
from worker.model.child_main import PROCESS_NAME

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
FORK_SERVER = "worker.launch.fork_server"
AT_ONCE_S = 2.0  # a refusal, on a busy machine
BEATS_LATE_MAX = 4  # how late the newest heartbeat before a kill may have been, on a busy machine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane() -> AsyncIterator[System]:
    async with system(model=True) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def running(plane: System) -> System:
    """Each test has a deployment of its own, whose circuit counts only its own ends."""
    await plane.deploy_again()
    return plane


async def refused(running: System, generation: str) -> Failure:
    """The refusal that an invocation gets."""

    async def look() -> Failure | None:
        answer = await running.invoke(generation, AT_ONCE_S)
        return answer if isinstance(answer, Failure) else None

    return await found(look, "invocations are refused")


async def fork_server(running: System) -> int:
    """The worker's child that only makes model processes."""

    async def look() -> int | None:
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(running.plane.pid("worker") or 0).children()
            servers = [each for each in below if each.name() != PROCESS_NAME and FORK_SERVER in each.cmdline()]
            return int(servers[0].pid) if servers else None
        return None

    return await found(look, "the worker has a fork server")


async def shown(running: System) -> Holding:
    """What `tenure ps` shows of the deployment."""
    async with await Client.connect(running.plane.settings, "chaos") as client:
        return next(held for held in await holdings(client) if held.deployment_id == running.deployed.id)


async def test_a_resident_model_process(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    with stopped([child]):
        waiting = asyncio.create_task(running.invoke(generation))
        await asyncio.sleep(0)
        begun = time.monotonic()
        os.kill(child, signal.SIGKILL)
    answer = await asyncio.wait_for(waiting, AT_ONCE_S)
    assert isinstance(answer, Failure)
    assert answer.code in (Code.CHILD_DIED, Code.NOT_RESIDENT)  # it was under way, or came just after
    assert (await refused(running, generation)).code is Code.NOT_RESIDENT

    async def lost() -> ResidencyChanged | None:
        return next((seen for seen in await running.events(ResidencyChanged) if seen.code is Code.CHILD_DIED), None)

    event = await found(lost, "the log says lost")
    assert (event.state, event.generation) == ("lost", generation)
    assert event.signed is not None
    assert await running.recovered("model process, an invocation under way: kill -9", begun) == generation
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_a_model_process_that_loads(running: System) -> None:
    generation = await running.serves()
    async with load_under_way(running) as (work_id, child):
        begun = time.monotonic()
        os.kill(child, signal.SIGKILL)
    work = await running.ended(work_id)
    assert (work.stage, work.code) == ("failed", Code.CHILD_DIED)
    assert await running.recovered("model process, a load under way: kill -9", begun) == generation
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_a_model_process_that_unloads(running: System) -> None:
    """That it was killed and did not end by itself is in the evidence; its memory is back either way."""
    generation, child = await running.serves(), await running.child()
    with stopped([child]):
        work_id = await running.job("unload")
        assert work_id is not None
        await running.leased(work_id)

        async def unloading() -> bool:
            live = await running.live()
            return live is not None and any(resident.entry.state == "unloading" for resident in live.residents)

        await eventually(unloading, "the unload is under way")
        begun = time.monotonic()
        os.kill(child, signal.SIGKILL)
    work = await done_once(running, work_id)
    assert work.row.result["child_exit_code"] == -signal.SIGKILL
    assert work.row.result["memory"]["process_after"] == {"bytes": 0, "unavailable": None}
    assert work.row.result["memory"]["reclaim_complete"]
    assert await running.recovered("model process, an unload under way: kill -9", begun) == generation
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_a_model_process_whose_unload_is_being_claimed(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    running.plane.proxy.hold_at(CLAIM)
    work_id = await running.job("unload")
    assert work_id is not None

    async def claimed() -> bool:
        return running.plane.proxy.holds(CLAIM)

    await eventually(claimed, "the claim is in the network")
    begun = time.monotonic()
    os.kill(child, signal.SIGKILL)
    await gone(child)
    running.plane.proxy.release()
    work = await running.ended(work_id)
    if work.stage == "completed":  # the unload found the process before the worker had noticed its end
        assert work.result["child_exit_code"] == -signal.SIGKILL
    else:
        assert (work.stage, work.code) == ("failed", Code.NOT_RESIDENT)
    assert await running.recovered("model process, a claim on its way: kill -9", begun) == generation
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_a_model_process_that_ends_again_and_again_is_not_loaded_for_ever(running: System) -> None:
    generation = await running.serves()
    for _ in range(ENDS_MAX):
        async with load_under_way(running) as (work_id, child):
            os.kill(child, signal.SIGKILL)
        assert (await running.ended(work_id)).code == Code.CHILD_DIED
    refused = await running.command("job.request", deployment_id=running.deployed.id, node_id=NODE, verb="load")
    assert refused.code is Code.RUNTIME_CRASH_LOOP
    assert Code.CHILD_DIED in refused.message
    seen = await running.events(CircuitOpened)
    (opened,) = [event for event in seen if event.deployment_id == running.deployed.id]
    assert (opened.cause, opened.ends) == (Code.CHILD_DIED, ENDS_MAX)
    closed = await running.command("circuit.close", deployment_id=running.deployed.id, node_id=NODE)
    assert closed.outcome == "accepted"
    assert await running.serves() == generation
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_the_process_that_model_processes_are_copied_from(running: System) -> None:
    """The resident is nobody's copy any more once it runs; the next one is made all the same."""
    generation, child = await running.serves(), await running.child()
    begun = time.monotonic()
    os.kill(await fork_server(running), signal.SIGKILL)
    assert await running.recovered("fork server: kill -9", begun) == generation
    assert await running.child() == child
    await running.unloaded()
    assert await running.serves() == generation
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_a_worker_that_loads(running: System) -> None:
    generation = await running.serves()
    async with load_under_way(running) as (work_id, child):
        begun = time.monotonic()
        running.plane.kill("worker")
        await gone(child)
    later = await running.recovered("worker, a load under way: kill -9", begun)
    assert int(later) > int(generation)
    work = await running.ended(work_id)
    assert (work.stage, work.attempt, work.generation) == ("completed", 2, later)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_a_worker_that_answers(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    with stopped([child]):
        waiting = asyncio.create_task(running.invoke(generation, AT_ONCE_S))
        await running.invocation_under_way()
        async with running.plane.untended():
            begun = time.monotonic()
            running.plane.kill("worker")
            await gone(child)  # it is stopped and cannot end itself: the kernel ends it with its worker
            held = await shown(running)
            assert (held.state, held.session, held.log_state) == ("unknown", "alive", "resident")
            assert held.silent_ms is not None
            assert held.silent_ms <= (time.monotonic() - begun) * 1_000 + TERMS["beat_ms"] * BEATS_LATE_MAX
    with pytest.raises(nats.errors.Error):  # no answer, and certainly no wrong one
        await waiting
    later = await running.recovered("worker, an invocation under way: kill -9", begun)
    assert int(later) > int(generation)
    with pytest.raises(nats.errors.NoRespondersError):
        await running.invoke(generation, AT_ONCE_S)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_a_worker_that_unloads(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    with stopped([child]):
        work_id = await running.job("unload")
        assert work_id is not None
        await running.leased(work_id)
        begun = time.monotonic()
        running.plane.kill("worker")
        await gone(child)
    later = await running.recovered("worker, an unload under way: kill -9", begun)
    assert int(later) > int(generation)
    work = await running.ended(work_id)
    assert (work.stage, work.code) == ("failed", Code.WORKER_LOST)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)


async def test_late_evidence_of_a_killed_worker_is_rejected_and_kept(running: System) -> None:
    generation, child = await running.serves(), await running.child()
    with stopped([child]):
        work_id = await running.job("health")
        assert work_id is not None
        await running.leased(work_id)
        running.plane.proxy.hold(new=False)
    evidence = f"tenure.evidence.v1.local.{generation}.{work_id}".encode()

    async def under_way() -> bool:
        return running.plane.proxy.holds(evidence)

    await eventually(under_way, "the worker has sent its result into the network")
    begun = time.monotonic()
    running.plane.kill("worker")
    await gone(child)
    await running.serving_session(after=generation)
    running.plane.proxy.release()

    async def rejected() -> EvidenceRejected | None:
        seen = await running.events(EvidenceRejected)
        return next((event for event in seen if event.work_id == work_id), None)

    event = await found(rejected, "the late result is in the log as rejected")
    assert (event.generation, event.reason) == (generation, Code.GENERATION_FENCED)
    assert event.signed.payload
    assert (await running.ended(work_id)).code == Code.WORKER_LOST
    await running.recovered("worker, its result still under way: kill -9", begun)
    await nothing_is_lost(running.plane.postgres_dsn, running.nc)
