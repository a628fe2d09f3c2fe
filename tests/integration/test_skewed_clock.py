"""A worker whose clocks are hours off: nothing changes, because only the control plane's clock decides.

Its wall clock stamps what it saw, for people; its clock since boot measures how long terms last. Both are moved by the
same hours before the worker starts, and the plane's are right.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec import json

from schemas.artifacts import FileEntry
from schemas.events import Event, LeaseGranted, SessionLost, WorkCompleted, WorkerRegistered, decode_event
from schemas.evidence import Evidence
from schemas.replies import Reply
from services.client import Client
from services.embedded.plane import Plane
from services.embedded.supervisor import ProcessSpec
from services.eventlog.postgres import PostgresLog
from services.settings import Settings
from tests.integration.worker_process import manifest

pytestmark = pytest.mark.timeout(180)
TERMS = {"session_ms": 2_000, "beat_ms": 200, "lease_ms": 2_000}
NODE = "local"
HOUR_S = 3_600
PROGRAM = """
import runpy, time
def move(name, unit):
    real = getattr(time, name)
    setattr(time, name, lambda *clock: real(*clock) + {seconds} * unit)
move("time", 1); move("time_ns", 10**9); move("clock_gettime", 1)
runpy.run_module("worker", run_name="__main__", alter_sys=True)
"""


class SkewedPlane(Plane):
    """A plane whose worker's clocks are `skew_s` off."""

    def __init__(self, settings: Settings, skew_s: int) -> None:
        super().__init__(settings)
        self._skew_s = skew_s

    def _worker(self) -> ProcessSpec:
        spec = super()._worker()
        program = PROGRAM.format(seconds=self._skew_s)
        argv: Sequence[str] = [spec.argv[0], "-P", "-c", program]
        return ProcessSpec(spec.name, argv, {**spec.env, "TENURE_WORKER_FORK_SERVER": "off"}, spec.grace_s)


@pytest.fixture(params=[-5 * HOUR_S, 5 * HOUR_S], ids=["behind", "ahead"])
async def plane(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[SkewedPlane, int]]:
    settings = Settings(data_dir=tmp_path, log_level="warning", **TERMS)  # type: ignore[arg-type]
    made = SkewedPlane(settings, request.param)
    async with made:
        yield made, request.param


async def test_sessions_leases_and_results_are_what_they_always_are(plane: tuple[SkewedPlane, int]) -> None:
    running, skew_s = plane
    generation = (await running.node_alive()).generation
    await asyncio.sleep(2 * TERMS["session_ms"] / 1_000)  # two whole terms under the fault
    async with await Client.connect(running.settings, "test") as client:
        live = await client.live(NODE)
        assert live is not None
        assert (live.serving, live.generation) == (True, generation)
        asked = await verify(client, running.settings.artifacts)
        work = await client.wait_work(str(asked.result["work_id"]), asked.position)
    assert (work.stage, work.attempt, work.generation) == ("completed", 1, generation)
    events = await whole(running)
    assert not [event for event in events if isinstance(event, SessionLost)]
    assert len([event for event in events if isinstance(event, WorkerRegistered)]) == 1
    (granted,) = [event for event in events if isinstance(event, LeaseGranted)]
    (done,) = [event for event in events if isinstance(event, WorkCompleted)]
    assert granted.at_ms <= done.at_ms <= time.time() * 1_000  # the log's times are the control plane's
    seen_ms = json.decode(done.signed.payload, type=Evidence).seen_at_ms
    assert abs(seen_ms - done.at_ms - skew_s * 1_000) < HOUR_S * 1_000  # and the worker's own is kept as it said it


async def verify(client: Client, root: Path) -> Reply:
    folder = root / "small"
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("An hour is what you make of it.\n")
    files: list[FileEntry] = manifest(folder)
    artifact = (await client.accepted("artifact.register", name="small", files=files)).result["artifact_id"]
    return await client.accepted("artifact.verify", artifact_id=artifact, node_id=NODE, location="small")


async def whole(running: Plane) -> list[Event]:
    log = PostgresLog(running.postgres_dsn)
    try:
        return [decode_event(row.topic, row.state) for row in await log.read(0, 1_000)]
    finally:
        await log.close()
