"""The control plane put together: one composition for the process, the tests and the simulation.

Order: become the writer (or stand by for it), fold the log, then listen. From the moment it listens it
answers from the whole log. The clock starts no earlier than the newest event, so that a host whose clock
went back does not stretch leases.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NamedTuple

import msgspec
import nats.errors
import nats.micro
import structlog
from nats.aio.client import Client

from domain.deciding.world import Ids
from schemas import subjects
from schemas.live import LiveAnswer
from services.bus import ensure_streams
from services.clock import Clock
from services.control.durable import DurableReader
from services.control.folded import Folded
from services.control.intake import Intake
from services.control.leadership import Leadership, become_leader
from services.control.offers import Announcer
from services.control.own_commands import OwnCommands
from services.control.sessions import Sessions
from services.control.writer import Writer
from services.eventlog.port import EventLog
from services.settings import DEVICE_RESERVE_BYTES_DEFAULT
from worker.cancellation import end_tasks

TICK_S = 0.25
COMPARE_S = 1.0
LIVE_TIMEOUT_S = 1.0

log = structlog.get_logger()


class Terms(NamedTuple):
    """See `services.settings`; `queue_ms` is how long work may wait for a claim, each time it is queued."""

    lease_ms: int
    session_ms: int
    beat_ms: int
    queue_ms: int = 600_000
    leader_ms: int = 4_000
    device_reserve_bytes: int = DEVICE_RESERVE_BYTES_DEFAULT


class ControlPlane:
    """One active control plane. `start` returns when it listens; `run` ends only with an error."""

    def __init__(self, eventlog: EventLog, nc: Client, clock: Clock, ids: Ids, terms: Terms, instance: str) -> None:
        self._log, self._nc, self._clock, self._ids = eventlog, nc, clock, ids
        self._terms, self._instance = terms, instance
        self._service: Any = None
        self._beats: Any = None

    async def start(self) -> None:
        await ensure_streams(self._nc)
        self.leadership: Leadership = await become_leader(
            self._log, self._clock, self._instance, self._terms.leader_ms, lambda: self._nc.is_connected
        )
        renewing = asyncio.create_task(self.leadership.run(), name="leadership")  # a long log takes a while to fold
        try:
            self.folded = Folded(self._log, self._ids, self._terms)
            read = await self.folded.replay(lambda position: log.info("control.replaying", position=position))
            self._clock.not_before(self.folded.newest_ms)
        finally:
            await end_tasks([renewing])
        fleet = self.folded.world.fleet
        self.writer = Writer(self._log, self.folded, self._clock, self.leadership.epoch, Announcer(self._nc))
        self._own = OwnCommands(self.writer)
        self.sessions = Sessions(fleet, self._terms, self._clock, self._ids)
        self.intake = Intake(self.writer, self.sessions, fleet, self._clock, self.leadership.holds)
        # A queue group of its own: a predecessor that stands still (stopped, say) must not be handed requests.
        self._service = await nats.micro.add_service(
            self._nc, name="tenure-control", version="1.0.0", description="commands",
            queue_group=f"epoch-{self.leadership.epoch}",
        )  # fmt: skip
        await self._service.add_endpoint(name="commands", subject=f"{subjects.RPC}.>", handler=self.intake.on_rpc)
        self._beats = await self._nc.subscribe(f"{subjects.BEAT}.*", cb=self.intake.on_beat)
        log.info("control.ready", epoch=self.leadership.epoch, events=read, stale=self.folded.stale)

    async def run(self) -> None:
        """Every loop, until one fails. Superseded means that another control plane is active."""
        loops = {
            "leadership": self.leadership.run(),
            "writer": self.writer.run(),
            "clock": self._tick(),
            "inventories": self._compare_inventories(),
            "commands": self._reader(subjects.STREAM_COMMANDS, subjects.CMD, self.intake.on_durable).run(),
            "evidence": self._reader(subjects.STREAM_EVIDENCE, subjects.EVIDENCE, self.intake.on_evidence).run(),
        }
        tasks = [asyncio.create_task(work, name=name) for name, work in loops.items()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_tasks(tasks)
            await self._service.stop()
            await self._beats.unsubscribe()

    def _reader(self, stream: str, prefix: str, handle: Any) -> DurableReader:
        return DurableReader(self._nc, stream, f"{prefix}.>", handle, self.leadership.holds)

    async def _compare_inventories(self) -> None:
        """Ask each worker whose inventory keeps differing from the log what it holds, and put the log right."""
        while True:
            for node in self.sessions.differing() if self.leadership.holds() else ():
                with contextlib.suppress(nats.errors.Error, TimeoutError, msgspec.DecodeError):
                    asked = await self._nc.request(subjects.live_subject(node.node_id), b"", timeout=LIVE_TIMEOUT_S)
                    command = self.sessions.compare(msgspec.json.decode(asked.data, type=LiveAnswer))
                    if command is not None and self.leadership.holds():
                        await self._own.submit(command)
            await asyncio.sleep(COMPARE_S)

    async def _tick(self) -> None:
        while True:
            self.intake.invalid.tell()
            if self.leadership.holds():
                for command in self.sessions.due():
                    await self._own.submit(command)
            await asyncio.sleep(TICK_S)
