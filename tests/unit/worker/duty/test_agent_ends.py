"""How a worker process ends: in order, with an exit code that says why, and a word to the control plane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import pytest
import structlog.testing

from schemas import subjects
from schemas.environments import RuntimeEnvironment
from schemas.live import BeatReply, LiveAnswer
from schemas.replies import Reply
from worker import agent as module
from worker.agent import EXIT_CLOSED, EXIT_FAILED, EXIT_REFUSED, EXIT_STOPPED, Agent
from worker.session import Session
from worker.settings import WorkerSettings

SECONDS_MAX = 20.0
ENVIRONMENT = RuntimeEnvironment(python="3.11", platform="test", worker="0", packages={}, adapters={}, devices=[])
GRANT = {"generation": "1", "session_ms": 60_000, "beat_ms": 10, "lease_ms": 30_000}


class Asked:
    """A message to the worker, with what it answered."""

    reply = "_INBOX.x"

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    async def respond(self, body: bytes) -> None:
        self.answers.append(body)


class Bus:
    """A connection to a control plane that answers, unless it is `silent`. `end` is what closes it for good."""

    def __init__(self) -> None:
        self.max_payload = 1_048_576
        self.last_error: Exception | None = None
        self.is_closed = False
        self.silent = False
        self.requests: list[str] = []
        self.callbacks: dict[str, Any] = {}
        self.closes = 0

    @property
    def is_connected(self) -> bool:
        return not self.is_closed

    def end(self) -> None:
        self.last_error, self.is_closed = nats.errors.AuthorizationError(), True

    def jetstream(self) -> Bus:
        return self

    async def request(self, subject: str, body: bytes, timeout: float) -> Any:
        self.requests.append(subject)
        if self.silent:
            raise nats.errors.NoRespondersError
        answer: Any = Reply("accepted", "c", result=GRANT if subject.endswith("register") else {})
        if subject.startswith(subjects.BEAT):
            answer = BeatReply(False, 60_000, 10, [], [], [])
        return type("Message", (), {"data": msgspec.json.encode(answer)})()

    async def subscribe(self, subject: str, cb: Any) -> Bus:
        self.callbacks[subject] = cb
        return self

    async def pull_subscribe(self, *_: Any, **__: Any) -> Bus:
        return self

    async def fetch(self, *_: Any, **__: Any) -> list[Any]:
        await asyncio.Event().wait()
        return []

    async def unsubscribe(self) -> None:
        """Nothing comes anyway."""

    async def close(self) -> None:
        self.closes += 1
        self.is_closed = True


class Opened:
    """In place of decoys and launcher, which tests of their own have."""

    targets = None

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class Site:
    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bus, self.decoys, self.launcher, self.stop = Bus(), Opened(), Opened(), asyncio.Event()

        async def connect(settings: WorkerSettings) -> Bus:
            return self.bus

        async def open_decoys(state: Path) -> Opened:
            return self.decoys

        monkeypatch.setattr(module, "connect", connect)
        monkeypatch.setattr(module.Decoys, "open", open_decoys)
        monkeypatch.setattr(module.Launcher, "open", lambda *_, **__: self.launcher)
        monkeypatch.setattr(module, "runtime_environment", lambda: ENVIRONMENT)
        monkeypatch.setattr(module, "BACKOFF_SECONDS_MAX", 0.01)
        settings = WorkerSettings(
            nats_url="", node_id="n1", credential="c" * 16, artifact_root=tmp_path, data_dir=tmp_path
        )
        self.agent = Agent(settings, self.stop)

    async def ends(self, when: Callable[[], bool], then: Callable[[], None]) -> int:
        """The exit code, where this happens once that is so."""
        running = asyncio.create_task(self.agent.run())
        async with asyncio.timeout(SECONDS_MAX):
            while not when():  # noqa: ASYNC110 - what the agent does sets no event
                await asyncio.sleep(0.001)
            then()
            code = await running
        assert (self.decoys.closed, self.launcher.closed, self.bus.closes) == (1, 1, 1)
        return code

    def has_asked(self, subject: str) -> bool:
        return any(each.startswith(subject) for each in self.bus.requests)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


LEAVE = subjects.rpc_subject("worker.leave")


async def test_told_to_stop_it_leaves(site: Site) -> None:
    assert await site.ends(lambda: site.has_asked(subjects.BEAT), site.stop.set) == EXIT_STOPPED
    assert site.has_asked(LEAVE)


async def test_a_connection_closed_for_good_under_a_session_ends_it(site: Site) -> None:
    assert await site.ends(lambda: site.has_asked(subjects.BEAT), site.bus.end) == EXIT_CLOSED
    assert not site.has_asked(LEAVE)


async def test_a_connection_closed_for_good_while_nobody_answers_ends_it(site: Site) -> None:
    """It asked to be registered for ever."""
    site.bus.silent = True
    assert await site.ends(lambda: len(site.bus.requests) > 2, site.bus.end) == EXIT_CLOSED


async def test_a_defect_in_a_session_ends_it_and_the_control_plane_hears(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()

    async def fencing(session: Session) -> None:
        await broken.wait()
        raise RuntimeError("a defect")

    monkeypatch.setattr(Session, "_fencing", fencing)
    assert await site.ends(lambda: site.has_asked(subjects.BEAT), broken.set) == EXIT_FAILED
    assert site.has_asked(LEAVE)


async def test_a_registration_that_does_not_fit_is_not_sent_for_ever(site: Site) -> None:
    site.bus.max_payload = 64
    with structlog.testing.capture_logs() as logs:
        assert await site.ends(lambda: True, lambda: None) == EXIT_REFUSED
    assert site.bus.requests == []
    reasons = [line["reason"] for line in logs if line["event"] == "registration_refused"]
    assert [reason.partition(":")[0] for reason in reasons] == ["MESSAGE_TOO_LARGE"]


async def test_a_live_answer_that_does_not_fit_is_silence_and_told_here(site: Site) -> None:
    """Half an inventory would say that the other half is gone."""
    asked: list[Asked] = [Asked(), Asked()]

    async def look() -> None:
        live = site.bus.callbacks[subjects.live_subject("n1")]
        await live(asked[0])
        site.bus.max_payload = 64
        await live(asked[1])
        site.stop.set()

    looking: list[asyncio.Task[None]] = []
    with structlog.testing.capture_logs() as logs:
        await site.ends(lambda: site.has_asked(subjects.BEAT), lambda: looking.append(asyncio.create_task(look())))
    await looking[0]
    assert msgspec.json.decode(asked[0].answers[0], type=LiveAnswer).generation == "1"
    assert asked[1].answers == []
    assert "live_answer_not_sent" in {line["event"] for line in logs}
