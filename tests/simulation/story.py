"""One story: a plane, a person who uses it, and faults; then everything is mended and must come to rest.

    outcome = Story(seed).run()

Raises Violation, with the log's last lines in `story.tail`, where an invariant breaks. The same seed tells the
same story.
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from domain.folding.fold import fold
from schemas import subjects
from schemas.events import Event, decode_event
from services.control.serve import ControlPlane, Terms
from services.eventlog.port import LogRow, Superseded
from services.eventlog.tail import Tail
from services.projector.projector import Projector
from services.relay.relay import Relay
from tests.simulation.bus import SimBus, SimClient
from tests.simulation.checkers import Violation
from tests.simulation.checkers.agreement import check_agreement
from tests.simulation.checkers.epochs import Versions
from tests.simulation.checkers.fencing import Fencing
from tests.simulation.checkers.gates import Gates
from tests.simulation.checkers.leases import Leases
from tests.simulation.checkers.owners import Owners
from tests.simulation.faults import Fault, draw
from tests.simulation.loop import Process, SimLoop
from tests.simulation.machine import Host, on_machine
from tests.simulation.storage import Disk, SimLog, SimStore
from tests.simulation.user import CREDENTIAL, NODE, User
from worker.agent import Agent
from worker.settings import WorkerSettings

TERMS = Terms(lease_ms=6_000, session_ms=4_000, beat_ms=500, queue_ms=60_000, leader_ms=2_000)
LENGTH_S = 45.0
REST_S = 120.0  # within which a mended plane must come to rest
RESTART_S = (0.1, 1.0)
CRASH_SHARE = 0.03  # of the effects of a process under `crash at effect`
TAIL = 40


class SimClock:
    """A control plane's clock: the simulation's time, with the offset that host had when it started."""

    def __init__(self, loop: SimLoop, offset_ms: int) -> None:
        self._loop, self._offset_ms = loop, offset_ms

    def now_ms(self) -> int:
        return int(self._loop.time() * 1_000) + self._offset_ms

    def not_before(self, at_ms: int) -> None:
        self._offset_ms = max(self._offset_ms, at_ms - int(self._loop.time() * 1_000))


class SimIds:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def secret(self) -> str:
        return f"{self._rng.getrandbits(256):064x}"


class Story:
    def __init__(self, seed: int, faults: list[Fault] | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed * 2 + 1)
        self.faults = draw(seed, LENGTH_S) if faults is None else faults
        self.loop = SimLoop()
        self.bus = SimBus(self.loop, self)
        self.host = Host(self.loop, self.rng)
        self.disk = Disk(lambda: int(self.loop.time() * 1_000), self._appended)
        self.processes: dict[str, Process] = {}
        self.clients: dict[str, SimClient] = {}
        self.agents: list[tuple[Process, Agent]] = []
        self.down_until: dict[str, float] = {}
        self.crashing: dict[str, float] = {}
        self.rates = SimpleNamespace(loss=0.0, duplication=0.0, reordering=0.0, slow=1.0)
        self.clock_offset_ms = 1_700_000_000_000
        self.mended = False
        self.leases = Leases()
        self.checkers: list[Any] = [
            Versions(), Fencing(self.leases), Owners(self._sessions), Gates(), self.leases,
        ]  # fmt: skip
        self.coverage: collections.Counter[str] = collections.Counter()
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL)
        self.violation: Violation | None = None
        self._states: dict[str, Any] = {}
        self._folded_to = 0

    def run(self) -> collections.Counter[str]:
        """Tell it. Returns what was covered: fault kinds and (stage, event) pairs."""
        asyncio.set_event_loop(self.loop)
        random.seed(self.seed)
        try:
            with on_machine(self.host), mock.patch("worker.agent.connect", self._connect_worker):
                self.loop.run_until_complete(self._tell())
        finally:
            self.loop.bury()
            asyncio.set_event_loop(None)
        if self.violation is not None:
            raise self.violation
        return self.coverage

    async def _tell(self) -> None:
        self._node()
        user = User(self)
        telling = asyncio.create_task(user.go())
        faults = asyncio.create_task(self._do_faults())
        ends_s = self.loop.time() + LENGTH_S
        while self.loop.time() < ends_s and self.violation is None:
            self._keep()
            await asyncio.sleep(0.1)
        await faults
        self._mend()
        ends_s = self.loop.time() + REST_S
        user.rest.set()
        while self.violation is None and not (telling.done() and self._at_rest()):
            self._keep()
            if self.loop.time() > ends_s:
                self.violation = Violation(f"not at rest {REST_S:.0f} s after everything was mended: {self._why(user)}")
            await asyncio.sleep(0.1)
        if self.violation is None:
            telling.result()
            check_agreement(self.disk.log._rows, self.disk.tables, self.bus.streams.get(subjects.STREAM_EVENTS))
            if self.loop.errors:
                raise Violation(f"errors nobody caught: {self.loop.errors[:3]}")

    # --- the plane ------------------------------------------------------------------------------------------

    def _node(self) -> None:
        for name in ("control", "standby", "relay", "projector", "worker"):
            self._start(name)

    def _start(self, name: str) -> None:
        process = Process(name)
        self.processes[name] = process
        role = {"standby": "control"}.get(name, name)
        self.loop.spawn(process, self._guard(process, getattr(self, f"_{role}")(process)))

    async def _guard(self, process: Process, work: Any) -> None:
        """A process that ends, in whatever way, is started again like one that was killed."""
        try:
            await work
        except Superseded:
            self.coverage["superseded"] += 1
        except Violation as violation:
            self.violation = self.violation or violation
        except Exception as error:  # noqa: BLE001 - a service that dies of an error is a finding
            if not isinstance(error, OSError):
                self.loop.errors.append(f"{process.name} died: {error!r}")
        finally:
            self.loop.kill(process)

    def _keep(self) -> None:
        """The supervisor: what has ended is started again after a moment."""
        now = self.loop.time()
        for name, process in list(self.processes.items()):
            if process.alive:
                continue
            back_s = self.down_until.setdefault(name, now + self.rng.uniform(*RESTART_S))
            if now >= back_s:
                del self.down_until[name]
                self._start(name)

    def client(self, process: Process) -> SimClient:
        client = SimClient(self.bus, process)
        self.clients[process.name] = client
        return client

    async def _control(self, process: Process) -> None:
        plane = ControlPlane(
            SimLog(self.disk, self), self.client(process), SimClock(self.loop, self.clock_offset_ms),
            SimIds(self.rng), TERMS, process.name,
        )  # type: ignore[arg-type]  # fmt: skip
        await plane.start()
        await plane.run()

    async def _relay(self, process: Process) -> None:
        relay = Relay(self.client(process), Tail(SimLog(self.disk, self)))  # type: ignore[arg-type]
        await relay.start()
        await relay.run()

    async def _projector(self, process: Process) -> None:
        log, nc = SimLog(self.disk, self), self.client(process)
        tail = Tail(log)
        await tail.listen(nc)  # type: ignore[arg-type]
        await Projector(log, tail, SimStore(self.disk, self), nc).run()  # type: ignore[arg-type]

    async def _worker(self, process: Process) -> None:
        settings = WorkerSettings(
            nats_url="", node_id=NODE, credential=CREDENTIAL, artifact_root=Path("/nowhere"), data_dir=Path("/tmp")
        )
        agent = Agent(settings, asyncio.Event())
        self.agents.append((process, agent))
        await agent.run()

    async def _connect_worker(self, settings: WorkerSettings) -> SimClient:
        from tests.simulation.loop import PROCESS

        process = PROCESS.get()
        assert process is not None
        return self.client(process)

    def _sessions(self) -> Iterable[tuple[str, Any]]:
        for process, agent in self.agents:
            if process.alive and agent._session is not None:
                yield NODE, agent._session

    # --- what is seen ---------------------------------------------------------------------------------------

    def _appended(self, row: LogRow) -> None:
        event: Event = decode_event(row.topic, row.state)
        self.tail.append(f"{self.loop.time() - 1_000:7.2f} s  {row.position} {row.stream[:22]} {_said(event)}")
        before = self.folded_before(row)
        state = getattr(before, "stage", getattr(before, "session", type(before).__name__ if before else "nothing"))
        self.coverage[f"{row.topic} in {state}"] += 1
        for checker in self.checkers:
            self.check(checker.see, row, event)

    def check(self, checker: Callable[..., None], *what: Any) -> None:
        """Ask a checker; the first violation ends the story."""
        try:
            checker(*what)
        except Violation as violation:
            self.violation = self.violation or violation

    def folded_before(self, row: LogRow) -> Any:
        """The state that a new row meets."""
        return self.folded(row.position - 1).get(row.stream)

    def folded(self, up_to: int | None = None) -> dict[str, Any]:
        """The log folded so far, kept up as it grows."""
        rows = self.disk.log._rows[:up_to]
        for row in rows[self._folded_to :]:
            state, _ = fold(self._states.get(row.stream), decode_event(row.topic, row.state))
            self._states[row.stream] = state
        self._folded_to = max(self._folded_to, len(rows))
        return self._states

    def _at_rest(self) -> bool:
        events = self.bus.streams.get(subjects.STREAM_EVENTS)
        last = len(self.disk.log._rows)
        return self.disk.tracked == last and events is not None and len(events.messages) == last

    def _why(self, user: User) -> str:
        events = self.bus.streams.get(subjects.STREAM_EVENTS)
        return (
            f"log {len(self.disk.log._rows)}, tables {self.disk.tracked}, "
            f"EVENTS {len(events.messages) if events else None}, the user waits for {user.waiting_for}"
        )

    # --- faults ---------------------------------------------------------------------------------------------

    def delay_s(self) -> float:
        return self.rng.uniform(0.0001, 0.002) * self.rates.slow

    def copies(self, process: Process, subject: str) -> int:
        if self.rates.loss and self.rng.random() < self.rates.loss:
            return 0
        return 2 if self.rates.duplication and self.rng.random() < self.rates.duplication else 1

    def reorders(self) -> bool:
        return bool(self.rates.reordering) and self.rng.random() < self.rates.reordering

    def effect(self, process: Process | None, what: str) -> None:
        if process is None or process.name not in self.crashing or not process.alive:
            return
        if self.rng.random() < CRASH_SHARE:
            self.coverage[f"crash at {what.split()[0]}"] += 1
            self.loop.call_soon(self.loop.kill, process, context=_no_context())

    async def _do_faults(self) -> None:
        begun = self.loop.time()
        for fault in self.faults:
            await asyncio.sleep(max(begun + fault.at_s - self.loop.time(), 0))
            self.coverage[f"fault {fault.kind}"] += 1
            self.tail.append(f"{self.loop.time() - 1_000:7.2f} s  FAULT {fault}")
            undo = self._do(fault)
            if undo is not None:
                self.loop.call_later(fault.lasts_s, undo)

    def _do(self, fault: Fault) -> Callable[[], None] | None:
        process = self.processes.get(fault.target)
        match fault.kind:
            case "kill" if process is not None:
                self.down_until[fault.target] = self.loop.time() + fault.lasts_s
                self.loop.kill(process)
            case "stop" if process is not None:
                self.loop.stop_process(process)
                return lambda: self.loop.resume(process)
            case "partition":
                return self._partition(fault.target)
            case "crash at effect":
                self.crashing[fault.target] = fault.lasts_s
                return lambda: self.crashing.pop(fault.target, None) and None
            case "loss" | "duplication" | "reordering":
                setattr(self.rates, fault.kind, self.rng.uniform(0.02, 0.3))
                return lambda: setattr(self.rates, fault.kind, 0.0)
            case "delay":
                self.rates.slow = self.rng.uniform(10, 400)
                return lambda: setattr(self.rates, "slow", 1.0)
            case "bus restart" | "bus wiped":
                self.bus.up = False
                if fault.kind == "bus wiped":
                    self.bus.wipe()
                return lambda: setattr(self.bus, "up", True)
            case "database away":
                self.disk.away = True
                return lambda: setattr(self.disk, "away", False)
            case "disk full":
                self.disk.full = True
                return lambda: setattr(self.disk, "full", False)
            case "lost acks":
                self.disk.lost_acks = 0.2
                return lambda: setattr(self.disk, "lost_acks", 0.0)
            case "child killed":
                self.host.kill_one()
            case "child hangs":
                self.host.hangs = 0.5
                return lambda: setattr(self.host, "hangs", 0.0)
            case "loads fail":
                self.host.load_failures = 0.7
                return lambda: setattr(self.host, "load_failures", 0.0)
            case "clock jump":
                self.clock_offset_ms += self.rng.choice((-3_600_000, -5_000, 5_000, 3_600_000))
            case "second worker":
                self._start("worker")
        return None

    def _partition(self, name: str) -> Callable[[], None] | None:
        client = self.clients.get(name)
        if client is None:
            return None
        client.connected = False
        return lambda: setattr(client, "connected", True)

    def _mend(self) -> None:
        self.mended = True
        self.crashing.clear()
        self.rates = SimpleNamespace(loss=0.0, duplication=0.0, reordering=0.0, slow=1.0)
        self.bus.up, self.disk.away, self.disk.full, self.disk.lost_acks = True, False, False, 0.0
        self.host.hangs = self.host.load_failures = 0.0
        for client in self.bus.clients:
            client.connected = True
        for process in [p for p, _ in self.agents] + list(self.processes.values()):
            if process.alive and process.stopped:
                self.loop.resume(process)

    def digest(self) -> str:
        """The same seed must give the same log."""
        rows = [(row.stream, row.version, row.topic) for row in self.disk.log._rows]
        return hashlib.sha256(repr(rows).encode()).hexdigest()


def _said(event: Event) -> str:
    told = [f"{name}={getattr(event, name)}" for name in ("generation", "attempt", "stage", "state", "code", "cause")
            if getattr(event, name, None) is not None]  # fmt: skip
    return f"{type(event).__name__} {' '.join(told)}"


def _no_context() -> Any:
    import contextvars

    return contextvars.Context()
