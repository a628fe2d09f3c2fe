"""A log that fails on request, and a control plane on top of it with a clock that is set by hand.

`FaultyLog` wraps any EventLog. `faults` are used up one per append: "lost ack" appends and then answers as
the library's repeat would, with ReceiptExists; "conflict" and "unavailable" append nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from domain.deciding.settle import Change
from schemas.commands import Command
from schemas.events import TOPIC_OF, encode_event
from schemas.replies import Reply
from services.control.folded import Folded
from services.control.submission import Submission
from services.control.writer import Writer
from services.eventlog.memory import MemoryLog
from services.eventlog.port import (
    EventLog,
    Leader,
    LogRow,
    LogUnavailable,
    NewEvent,
    NewReceipt,
    Receipt,
    ReceiptExists,
    VersionConflict,
)
from tests.unit.domain.invariants import facts
from tests.unit.domain.story import CountedIds, Line, Story, Terms

STEPS_MAX = 20


class FaultyLog:
    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.faults: deque[str] = deque()
        self.down = False  # every call fails
        self.reads_down = False
        self.appends = 0

    async def append(self, events: Sequence[NewEvent], receipts: Sequence[NewReceipt], epoch: int) -> list[int]:
        self._reachable()
        self.appends += 1
        match self.faults.popleft() if self.faults else None:
            case "conflict":
                raise VersionConflict("somebody else wrote")
            case "unavailable":
                raise LogUnavailable("the connection broke before the append")
            case "landed, unavailable":
                await self.log.append(events, receipts, epoch)
                raise LogUnavailable("the connection broke after the append")
            case "lost ack":
                await self.log.append(events, receipts, epoch)
                raise ReceiptExists("the repeat met its own receipts")
            case _:
                return await self.log.append(events, receipts, epoch)

    async def read(self, after: int, limit: int) -> list[LogRow]:
        self._reachable()
        return await self.log.read(after, limit)

    async def read_streams(self, streams: Sequence[str], up_to: int | None = None) -> list[LogRow]:
        self._reachable()
        if self.reads_down:
            raise LogUnavailable("reading fails")
        return await self.log.read_streams(streams, up_to)

    async def receipts(self, command_ids: Sequence[str]) -> dict[str, Receipt]:
        self._reachable()
        return await self.log.receipts(command_ids)

    async def last_position(self) -> int:
        self._reachable()
        return await self.log.last_position()

    async def leader(self) -> Leader:
        self._reachable()
        return await self.log.leader()

    async def take_epoch(self, holder: str, expected: int | None = None) -> int | None:
        self._reachable()
        return await self.log.take_epoch(holder, expected)

    async def renew_epoch(self, epoch: int) -> bool:
        self._reachable()
        return await self.log.renew_epoch(epoch)

    async def close(self) -> None:
        await self.log.close()

    def _reachable(self) -> None:
        if self.down:
            raise LogUnavailable("the log is down")


class SetClock:
    def __init__(self) -> None:
        self.at_ms = 1_000_000

    def now_ms(self) -> int:
        return self.at_ms

    def elapsed_s(self) -> float:
        return self.at_ms / 1_000

    def not_before(self, at_ms: int) -> None:
        self.at_ms = max(self.at_ms, at_ms)


class Control:
    """A writer on a FaultyLog. `ask` submits commands as one group and gives the replies in their order."""

    def __init__(self, log: FaultyLog, writer: Writer, folded: Folded, clock: SetClock, ids: CountedIds) -> None:
        self.log, self.writer, self.folded, self.clock, self.ids = log, writer, folded, clock, ids
        self.announced: list[Change] = []

    @classmethod
    async def start(cls, log: EventLog | None = None, ids: CountedIds | None = None) -> Control:
        faulty, clock = FaultyLog(log or MemoryLog()), SetClock()
        ids = ids or CountedIds()
        announced: list[Change] = []

        async def on_commit(changes: Sequence[Change], position: int) -> None:
            announced.extend(changes)

        epoch = await faulty.take_epoch("test")
        folded = Folded(faulty, ids, Terms())
        await folded.replay()
        made = cls(faulty, Writer(faulty, folded, clock, epoch, on_commit), folded, clock, ids)
        made.announced = announced
        return made

    async def ask(self, *commands: Command, receipt: bool = True) -> list[Reply]:
        heard: list[tuple[int, Reply]] = []

        def respond_to(number: int) -> Any:
            async def respond(reply: Reply) -> None:
                heard.append((number, reply))

            return respond

        for number, command in enumerate(commands):
            await self.writer.submit(Submission(command, respond_to(number), receipt=receipt))
        for _ in range(STEPS_MAX):
            if self.writer.queued == 0:
                break
            await self.writer.step()
        assert sorted(number for number, _ in heard) == list(range(len(commands))), "each is answered exactly once"
        return [reply for _, reply in sorted(heard, key=lambda item: item[0])]

    @classmethod
    async def after(cls, story: Story) -> Control:
        """A control plane that starts on the log of a story."""
        return await cls.start(await log_of(story.lines), story.ids)

    async def assert_world_is_the_log(self) -> None:
        """What the writer has in memory is what a fresh replay of the log gives, index included."""
        fresh = Folded(self.log.log, self.ids, Terms())
        await fresh.replay()
        mine = {s: state for s, state in self.folded.world.states.items() if state is not None}
        assert mine == {s: state for s, state in fresh.world.states.items() if state is not None}
        versions = {s: v for s, v in self.folded.world.versions.items() if v}
        assert versions == fresh.world.versions
        assert facts(self.folded.world.fleet) == facts(fresh.world.fleet)


async def log_of(lines: Sequence[Line]) -> MemoryLog:
    """A log that holds these events."""
    log = MemoryLog()
    epoch = await log.take_epoch("story")
    events = [
        NewEvent(line.stream, line.version, TOPIC_OF[type(line.event)], encode_event(line.event)) for line in lines
    ]
    await log.append(events, [], epoch)
    return log
