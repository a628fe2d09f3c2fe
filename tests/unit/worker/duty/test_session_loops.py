"""A session's loops: none waits for what may take long, and none ends without the session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.errors import ConnectionClosedError

from schemas.environments import Device, RuntimeEnvironment
from schemas.live import Beat, BeatReply
from worker.clock import local_ms
from worker.session import WATCH_MS_MAX, Granted, Session
from worker.settings import WorkerSettings

SECONDS_MAX = 10.0
SESSION_MS = 2_000
LOOPS = ("_beats", "_watchdog", "_fencing", "_stopping", "_outbox.run", "_offers.run")


class Plane:
    """The control plane's side of heartbeats: each is answered, and says to end `unwanted`."""

    def __init__(self, *unwanted: str) -> None:
        self.unwanted = list(unwanted)
        self.beats = 0
        self.answers = True

    async def command(self, name: str, command: Any, timeout_ms: float) -> Any:
        raise AssertionError("nobody claims here")

    async def beat(self, beat: Beat, timeout_ms: float) -> BeatReply:
        self.beats += 1
        if not self.answers:
            await asyncio.Event().wait()
        return BeatReply(False, SESSION_MS, 10, [], [], [], self.unwanted)


class Bus:
    """A connection on which nothing comes. It is closed for good where it has a `last_error`."""

    max_payload = 1_048_576
    is_connected = True

    def __init__(self) -> None:
        self.last_error: Exception | None = None
        self.subscribed = 0

    @property
    def is_closed(self) -> bool:
        return self.last_error is not None

    def jetstream(self) -> Bus:
        return self

    async def subscribe(self, subject: str, cb: Any) -> Bus:
        if self.is_closed:
            raise ConnectionClosedError
        self.subscribed += 1
        return self

    async def pull_subscribe(self, *_: Any, **__: Any) -> Bus:
        self.subscribed += 1
        return self

    async def fetch(self, *_: Any, **__: Any) -> list[Any]:
        await asyncio.Event().wait()
        return []

    async def unsubscribe(self) -> None:
        self.subscribed -= 1


def session_on(bus: Bus, plane: Plane, tmp_path: Path) -> Session:
    settings = WorkerSettings(nats_url="", node_id="n1", credential="c" * 16, artifact_root=tmp_path, data_dir=tmp_path)
    environment = RuntimeEnvironment("3.11", "linux", "0", {}, {}, [Device("cpu", 0, "x86")])
    granted = Granted("7", SESSION_MS, 10, 30_000, local_ms())
    client: Any = bus
    decoys: Any = type("Nobody", (), {"targets": None})()
    launcher: Any = None
    return Session(
        settings, client, plane, granted, Ed25519PrivateKey.generate(), "boot", environment, decoys, launcher
    )


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not reached():  # noqa: ASYNC110 - what loops do sets no event
            await asyncio.sleep(0.001)


@pytest.fixture
def bus() -> Bus:
    return Bus()


async def test_a_process_that_takes_long_to_end_costs_no_heartbeat(bus: Bus, tmp_path: Path) -> None:
    plane, asked, may_end = Plane("d1", "d2"), [], asyncio.Event()
    session = session_on(bus, plane, tmp_path)

    async def end_unwanted(deployment_id: str) -> None:
        asked.append(deployment_id)
        await may_end.wait()  # as ModelProcess.kill may, up to 30 s: longer than the session's term

    session.residents.end_unwanted = end_unwanted  # type: ignore[method-assign]
    stop = asyncio.Event()
    running = asyncio.create_task(session.run(stop))
    await until(lambda: plane.beats > 5)
    assert asked == ["d1", "d2"], "at most one for each deployment"
    before_ms = session.valid_until_ms
    await until(lambda: session.valid_until_ms > before_ms)  # renewed all the while
    may_end.set()
    await until(lambda: len(asked) > 2)  # and asked again where it is still wanted to end
    stop.set()
    assert await running == "stopped"
    assert session._unwanted == {}


async def test_an_ending_that_fails_is_told_and_tried_again(bus: Bus, tmp_path: Path) -> None:
    plane, tries = Plane("d1"), []
    session = session_on(bus, plane, tmp_path)

    async def end_unwanted(deployment_id: str) -> None:
        tries.append(deployment_id)
        raise RuntimeError("not this one")

    session.residents.end_unwanted = end_unwanted  # type: ignore[method-assign]
    stop = asyncio.Event()
    with structlog.testing.capture_logs() as logs:
        running = asyncio.create_task(session.run(stop))
        await until(lambda: len(tries) > 2)
        stop.set()
        assert await running == "stopped"
    assert {"d1"} == {line["what"] for line in logs if line["event"] == "not_ended_in_order"}


@pytest.mark.parametrize("how", ["raises", "returns", "is cancelled"])
@pytest.mark.parametrize("loop", LOOPS)
async def test_a_loop_that_ends_by_itself_ends_the_session(loop: str, how: str, bus: Bus, tmp_path: Path) -> None:
    session, killed = session_on(bus, Plane(), tmp_path), []

    async def ends(*_: Any) -> None:
        await asyncio.sleep(0)
        if how == "raises":
            raise RuntimeError("a defect")
        if how == "is cancelled":
            raise asyncio.CancelledError

    async def kill_all() -> None:
        killed.append(True)

    where: Any = session
    *path, name = loop.split(".")
    for each in path:
        where = getattr(where, each)
    setattr(where, name, ends)
    session.residents.kill_all = kill_all  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(SECONDS_MAX):
            assert await session.run(asyncio.Event()) == "failed"
    assert [line["loop"] for line in logs if line["event"] == "session_loop_ended"] == [loop.strip("_").split(".")[0]]
    assert (killed, bus.subscribed) == ([True], 0)
    assert not session.is_valid()


async def test_a_connection_closed_for_good_ends_the_session(bus: Bus, tmp_path: Path) -> None:
    plane = Plane()
    session = session_on(bus, plane, tmp_path)
    running = asyncio.create_task(session.run(asyncio.Event()))
    await until(lambda: plane.beats > 0)
    bus.last_error = RuntimeError("nats: authorization failed")
    async with asyncio.timeout(WATCH_MS_MAX / 1_000 * 4):
        assert await running == "closed"


async def test_one_that_is_closed_before_the_session_opens_is_no_defect(bus: Bus, tmp_path: Path) -> None:
    session = session_on(bus, Plane(), tmp_path)
    bus.last_error = RuntimeError("nats: authorization failed")
    assert await session.run(asyncio.Event()) == "closed"


async def test_a_wait_that_nats_py_cancels_as_it_closes_is_no_defect(bus: Bus, tmp_path: Path) -> None:
    session = session_on(bus, Plane(), tmp_path)

    async def run() -> None:
        bus.last_error = RuntimeError("nats: authorization failed")
        raise asyncio.CancelledError

    session._offers.run = run  # type: ignore[method-assign]
    assert await session.run(asyncio.Event()) == "closed"


async def test_what_fails_to_end_keeps_nothing_else_running(bus: Bus, tmp_path: Path) -> None:
    session = session_on(bus, Plane(), tmp_path)

    async def kill_all() -> None:
        raise OSError("no such process")

    session.residents.kill_all = kill_all  # type: ignore[method-assign]
    stop = asyncio.Event()
    running = asyncio.create_task(session.run(stop))
    await until(lambda: bool(session._tasks))
    stop.set()
    assert await running == "stopped"
    assert all(task.done() for task in session._tasks)
    assert bus.subscribed == 0
