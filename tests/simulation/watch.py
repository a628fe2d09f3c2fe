"""What the simulation shows: to the checkers step by step, to the persons as a folded log, to us as coverage.

The first violation is kept and ends the story.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from domain.folding.fold import fold
from domain.folding.states import WorkState
from projections.project import Rows
from schemas import events as ev
from schemas import subjects
from schemas.events import decode_event
from schemas.live import LiveAnswer
from schemas.replies import Reply
from services.client.live import Holding
from services.eventlog.port import LogRow, NewReceipt
from tests.simulation.checkers import Violation
from tests.simulation.checkers.suite import Suite
from tests.simulation.coverage import Coverage
from tests.simulation.loop import SimLoop

TAIL = 40


class Watch:
    def __init__(self, loop: SimLoop, suite: Suite, coverage: Coverage) -> None:
        self._loop = loop
        self.suite = suite
        self.coverage = coverage
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL)
        self.violation: Violation | None = None
        self.states: dict[str, Any] = {}  # the log folded so far, which the persons read
        self.moved = asyncio.Event()  # set, and made anew, with each transaction
        self.owner_changed = asyncio.Event()  # likewise, where a node's worker begins or ends

    # --- each is one step of the story ----------------------------------------------------------------------

    def appended(self, rows: Sequence[LogRow], receipts: Sequence[NewReceipt], epoch: int, newest: int) -> None:
        """The log took a transaction; nobody has been told of it yet."""
        self.ask(self.suite.epochs.appended, epoch, newest)
        for row in rows:
            event = decode_event(row.topic, row.state)
            self._note(row, event)
            for checker in self.suite.checkers:
                self.ask(checker.see, row, event)
        self.ask(self.suite.outcomes.committed, receipts)
        self.tick()
        self.moved.set()
        self.moved = asyncio.Event()

    def written(self, rows: Rows, expected: int, position: int) -> None:
        self.ask(self.suite.agreement.written, rows, expected, position)
        self.tick()

    def stored(self, stream: str, first: bool, subject: str, data: bytes, headers: Mapping[str, str] | None) -> None:
        """JetStream took a message."""
        if stream == subjects.STREAM_EVENTS:
            self.ask(self.suite.agreement.copied, first, subject, data, headers or {})
            self.tick()

    def redelivered(self, stream: str) -> None:
        """A message that was not acknowledged in time comes again. No step: nobody has looked at it yet."""
        self.coverage[f"came again from {stream}"] += 1

    def told(self, told: Holding, answer: LiveAnswer | None, position: int, asked_s: float) -> None:
        """Somebody has put together what is loaded."""
        self.coverage[f"told {told.state}"] += 1
        self.ask(self.suite.owners.told, told, answer, position, asked_s)
        self.tick()

    def heard(self, subject: str, body: bytes, data: bytes) -> None:
        """Somebody who sent `body` by request has the answer."""
        if subject.startswith(f"{subjects.RPC}."):
            reply = self.ask(self.suite.outcomes.heard, body, data)
            name = ".".join(subject[len(subjects.RPC) + 1 :].split(".")[:2])
            if isinstance(reply, Reply):
                self.ask(self.suite.advertised.heard, name, body, reply)
            if isinstance(reply, Reply) and reply.code is not None:
                self.coverage[f"refused {name}: {reply.code}"] += 1
        self.tick()

    def tick(self) -> None:
        for checker in self.suite.checkers:
            self.ask(checker.step)

    def rests(self) -> None:
        for checker in self.suite.checkers:
            self.ask(checker.rest)

    def ask(self, check: Callable[..., Any], *what: Any) -> Any:
        """Let a checker look, by one of its methods; what is found first is kept, with the checker's name."""
        try:
            return check(*what)
        except Violation as violation:
            name = type(getattr(check, "__self__", None)).__name__
            self.violation = self.violation or Violation(f"{name}: {violation}")
            return None

    # --- what is counted and folded -------------------------------------------------------------------------

    def _note(self, row: LogRow, event: ev.Event) -> None:
        self.fault_or_event(f"{row.position} {row.stream[:22]} {_said(event)}")
        before = self.states.get(row.stream)
        self.coverage.note(row, before, event)
        if isinstance(event, ev.WorkerRegistered | ev.SessionLost | ev.NodeDisabled):
            self.owner_changed.set()
            self.owner_changed = asyncio.Event()
        self.states[row.stream], _ = fold(before, event)

    def fault_or_event(self, what: str) -> None:
        self.tail.append(f"{self._loop.time() - 1_000:7.2f} s  {what}")

    def works(self) -> list[WorkState]:
        return [state for state in self.states.values() if isinstance(state, WorkState)]


def _said(event: ev.Event) -> str:
    told = [f"{name}={getattr(event, name)}" for name in ("generation", "attempt", "stage", "state", "code", "cause")
            if getattr(event, name, None) is not None]  # fmt: skip
    return f"{type(event).__name__} {' '.join(told)}"
