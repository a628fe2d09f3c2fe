"""The processes of a story, started and started again: control plane, standby, relay, projector, worker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from domain.folding.states import State
from services.control.serve import ControlPlane, Terms
from services.eventlog.port import LogUnavailable, Superseded
from services.eventlog.tail import Tail
from services.projector.projector import Projector
from services.relay.relay import Relay
from tests.simulation.bus import SimBus, SimClient
from tests.simulation.checkers import Violation
from tests.simulation.checkers.truth import Active
from tests.simulation.loop import PROCESS, Process, SimLoop
from tests.simulation.storage import Disk, SimLog, SimStore
from tests.simulation.watch import Watch
from worker.agent import EXIT_FAILED, Agent
from worker.settings import WorkerSettings

NODE = "n1"
CREDENTIAL = "credential-of-the-simulated-node"
NAMES = ("control", "standby", "relay", "projector", "worker")
RESTART_S = (0.1, 1.0)
EPOCH_MS = 1_700_000_000_000  # the wall clock at the story's beginning


class SimClock:
    """A control plane's clock: the simulation's time, with the offset that host had when it started."""

    def __init__(self, loop: SimLoop, offset_ms: int) -> None:
        self._loop, self._offset_ms = loop, offset_ms

    def now_ms(self) -> int:
        return int(self._loop.time() * 1_000) + self._offset_ms

    def not_before(self, at_ms: int) -> None:
        self._offset_ms = max(self._offset_ms, at_ms - int(self._loop.time() * 1_000))

    def elapsed_s(self) -> float:
        return self._loop.time()


class SimIds:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def secret(self) -> str:
        return f"{self._rng.getrandbits(256):064x}"


class HeardClient(SimClient):
    """A client whose answers the checkers hear as well."""

    def __init__(self, bus: SimBus, process: Process, watch: Watch) -> None:
        super().__init__(bus, process)
        self._watch = watch

    async def request(
        self, subject: str, payload: bytes = b"", timeout: float = 0.5, headers: dict[str, str] | None = None
    ) -> Any:
        answer = await super().request(subject, payload, timeout, headers)
        self._watch.heard(subject, payload, answer.data)
        return answer


class Plane:
    def __init__(self, loop: SimLoop, bus: SimBus, disk: Disk, watch: Watch, rng: random.Random, terms: Terms) -> None:
        self._loop, self._bus, self._disk, self._watch, self._rng = loop, bus, disk, watch, rng
        self._terms = terms
        self.clock_offset_ms = EPOCH_MS
        self.processes: dict[str, Process] = {}
        self.clients: dict[str, SimClient] = {}
        self.agents: list[tuple[Process, Agent]] = []
        self.down_until: dict[str, float] = {}
        self._bus_seen_s: dict[str, float] = {}
        self._listening: dict[int, tuple[Process, ControlPlane, SimClock]] = {}  # by epoch

    def start_all(self) -> None:
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        process = Process(name)
        self.processes[name] = process
        role = {"standby": "control"}.get(name, name)
        self._loop.spawn(process, self._guard(process, getattr(self, f"_{role}")(process)))

    async def _guard(self, process: Process, work: Any) -> None:
        """A process that ends, in whatever way, is started again like one that was killed."""
        try:
            await work
        except Superseded:
            self._watch.coverage["superseded"] += 1
        except Violation as violation:
            self._watch.violation = self._watch.violation or violation
        except (OSError, LogUnavailable):  # at its start: without bus and log there is no going on
            self._watch.coverage[f"{process.name} could not start"] += 1
        except Exception as error:  # noqa: BLE001 - a service that dies of an error is a finding
            self._loop.errors.append(f"{process.name} died: {error!r}")
        finally:
            self._loop.kill(process)

    def keep(self) -> None:
        """The supervisor: what has ended is started again after a moment."""
        now = self._loop.time()
        for name, process in list(self.processes.items()):
            if process.alive:
                continue
            back_s = self.down_until.setdefault(name, now + self._rng.uniform(*RESTART_S))
            if now >= back_s:
                del self.down_until[name]
                self.start(name)

    def client(self, process: Process) -> HeardClient:
        client = HeardClient(self._bus, process, self._watch)
        self.clients[process.name] = client
        return client

    async def _control(self, process: Process) -> None:
        clock = SimClock(self._loop, self.clock_offset_ms)
        log, ids = SimLog(self._disk), SimIds(self._rng)
        plane = ControlPlane(log, self.client(process), clock, ids, self._terms, process.name)  # type: ignore[arg-type]
        await plane.start()
        self._listening[plane.leadership.epoch] = (process, plane, clock)
        await plane.run()

    async def _relay(self, process: Process) -> None:
        relay = Relay(self.client(process), Tail(SimLog(self._disk)))  # type: ignore[arg-type]
        await relay.start()
        await relay.run()

    async def _projector(self, process: Process) -> None:
        log, nc = SimLog(self._disk), self.client(process)
        tail = Tail(log)
        await tail.listen(nc)  # type: ignore[arg-type]
        await Projector(log, tail, SimStore(self._disk), nc).run()  # type: ignore[arg-type]

    async def _worker(self, process: Process) -> None:
        settings = WorkerSettings(
            nats_url="", node_id=NODE, credential=CREDENTIAL, artifact_root=Path("/nowhere"), data_dir=Path("/tmp")
        )
        agent = Agent(settings, asyncio.Event())
        self.agents.append((process, agent))
        if await agent.run() == EXIT_FAILED:
            self._loop.errors.append(f"{process.name} ended by a defect")

    async def connect_worker(self, settings: WorkerSettings) -> SimClient:
        """In place of `worker.agent.connect`."""
        process = PROCESS.get()
        assert process is not None
        return self.client(process)

    def ask_to_stop(self) -> None:
        """SIGTERM to the newest worker: it gives its work back, unloads, and leaves."""
        process, agent = self.agents[-1]
        if process.alive:
            agent._stop.set()

    # --- the truth, for checkers ----------------------------------------------------------------------------

    def sessions(self) -> Iterator[tuple[str, Any]]:
        """Of every worker process that was not killed."""
        for process, agent in self.agents:
            if process.alive and agent._session is not None:
                yield NODE, agent._session

    def _active(self) -> tuple[Process, ControlPlane, SimClock] | None:
        found = self._listening.get(self._disk.log._leader.epoch)
        return found if found is not None and found[0].alive else None

    def active(self) -> Active | None:
        """The active control plane, where it runs, can reach the log, and has not been without the bus for a term.

        After such a term it leads nobody (see `services.control.leadership`), and another one may take over.
        """
        found = self._active()
        if found is None or found[0].stopped or not self._disk.reachable:
            return None
        if found[1]._nc.is_connected:
            self._bus_seen_s[found[0].name] = self._loop.time()
        elif self._loop.time() - self._bus_seen_s.get(found[0].name, 0.0) > self._terms.leader_ms / 1_000:
            return None
        return Active(self._disk.log._leader.epoch, found[2].now_ms())

    def memory(self) -> Mapping[str, State | None] | None:
        """What the active control plane's writer knows of each stream."""
        found = self._active()
        return found[1].folded.world.states if found is not None else None
