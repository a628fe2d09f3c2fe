"""One story: a plane, persons who use it, and faults; then everything is mended and must come to rest.

    Story(seed).run()

Raises Violation, with the log's last lines in `story.watch.tail`, where an invariant breaks. The same seed tells the
same story.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from unittest import mock

from schemas import subjects
from tests.simulation.asking import Asker
from tests.simulation.bus import SimBus
from tests.simulation.canceller import Canceller
from tests.simulation.checkers import Violation
from tests.simulation.checkers.suite import make_suite
from tests.simulation.coverage import Coverage
from tests.simulation.faults import Fault, draw
from tests.simulation.injection import Injector
from tests.simulation.looking import Looker, Onlooker
from tests.simulation.loop import Process, SimLoop
from tests.simulation.machine import Host, on_machine
from tests.simulation.network import SimNetwork
from tests.simulation.plane import Plane
from tests.simulation.scenario import draw_scenario
from tests.simulation.storage import Disk
from tests.simulation.truth import StoryTruth
from tests.simulation.user import User
from tests.simulation.watch import Watch

LENGTH_S = 45.0
REST_S = 120.0  # within which a mended plane must come to rest
TICK_S = 0.1  # a step in which nothing happened


class Story:
    def __init__(self, seed: int, faults: list[Fault] | None = None) -> None:
        self.seed = seed
        self.faults = draw(seed, LENGTH_S) if faults is None else faults
        self.scenario = draw_scenario(seed)
        self.coverage = Coverage()
        self.loop = SimLoop()
        rng = random.Random(seed * 2 + 1)
        self._network = SimNetwork(self.loop, rng, self.coverage)
        self._bus = SimBus(self.loop, self._network)
        self.host = Host(self.loop, rng, self.scenario)
        self.disk = Disk(self.loop, self._network, rng)
        truth = StoryTruth(self.loop, self.host, self.coverage)
        self.watch = Watch(self.loop, make_suite(truth, self.scenario.terms), self.coverage)
        self._plane = Plane(self.loop, self._bus, self.disk, self.watch, rng, self.scenario.terms)
        self._injector = Injector(self.loop, self._bus, self._network, self.disk, self.host, self._plane, rng)
        truth.plane, truth.injector = self._plane, self._injector
        self.disk.on_append, self.disk.on_write = self.watch.appended, self.watch.written
        self._bus.on_store, self._bus.on_redelivery = self.watch.stored, self.watch.redelivered
        client = self._plane.client(Process("user"))
        looker = Looker(client, self.watch, self.disk)
        self._user = User(Asker("user", client, rng), looker, self.watch, rng, self.scenario)
        self._onlooker = Onlooker(looker, self.watch, rng)
        self._canceller = Canceller(Asker("second", self._plane.client(Process("second")), rng), self.watch, rng)

    def run(self) -> None:
        """Tell it."""
        asyncio.set_event_loop(self.loop)
        random.seed(self.seed)
        try:
            with on_machine(self.host), mock.patch("worker.agent.connect", self._plane.connect_worker):
                self.loop.run_until_complete(self._tell())
        finally:
            self.loop.bury()
            asyncio.set_event_loop(None)
        if self.watch.violation is not None:
            raise self.watch.violation

    async def _tell(self) -> None:
        self._plane.start_all()
        telling = [asyncio.create_task(self._user.go())]
        if self.scenario.cancels:
            telling.append(asyncio.create_task(self._canceller.go()))
        looking = asyncio.create_task(self._onlooker.go())
        faults = asyncio.create_task(self._injector.run(self.faults, self.watch))
        ends_s = self.loop.time() + LENGTH_S
        while self.loop.time() < ends_s and self.watch.violation is None:
            await self._pass()
        await faults
        self._injector.mend()
        ends_s = self.loop.time() + REST_S
        self._user.rest.set()
        self._canceller.rest.set()
        while self.watch.violation is None and not (all(task.done() for task in telling) and self._at_rest()):
            if self.loop.time() > ends_s:
                raise Violation(f"not at rest {REST_S:.0f} s after everything was mended: {self._why()}")
            await self._pass()
        looking.cancel()
        if self.watch.violation is None:
            for task in telling:
                task.result()
            self._check_rest()

    async def _pass(self) -> None:
        self._plane.keep()
        self.watch.tick()
        await asyncio.sleep(TICK_S)

    def _at_rest(self) -> bool:
        events, last = self._bus.streams.get(subjects.STREAM_EVENTS), len(self.disk.log._rows)
        return self.disk.tracked == last and events is not None and len(events.messages) == last

    def _check_rest(self) -> None:
        self.watch.rests()
        events = self._bus.streams[subjects.STREAM_EVENTS]
        copied = [(subject, data, headers or {}) for subject, data, headers in events.messages.values()]
        self.watch.ask(self.watch.suite.agreement.rest_with, self.disk.tables, copied)
        self.watch.ask(self.watch.suite.outcomes.stored, list(self.disk.log._receipts))
        if self.loop.errors:
            raise Violation(f"errors nobody caught: {self.loop.errors[:3]}")

    def _why(self) -> str:
        events = self._bus.streams.get(subjects.STREAM_EVENTS)
        return (
            f"log {len(self.disk.log._rows)}, tables {self.disk.tracked}, "
            f"EVENTS {len(events.messages) if events else None}, the user waits for {self._user.waiting_for}, "
            f"last of all for {self._user.asker.waiting_for}"
        )

    def digest(self) -> str:
        """The same seed must give the same log."""
        rows = [(row.stream, row.version, row.topic) for row in self.disk.log._rows]
        return hashlib.sha256(repr(rows).encode()).hexdigest()
