"""The writer: takes commands from a bounded queue, decides them in memory, commits them in groups.

A group is whatever waits when the last commit has returned; there is no timer. Commands are decided in
the order they came, each on the state its predecessors left. One append carries all events and receipts
of the group; only after it does anybody hear an outcome.

When an append fails, or the log fails before it, what was folded ahead is taken back from the log, as soon as that
can be reached and whether or not there are commands. Then:

* ReceiptExists: some commands were decided before (a duplicate, or our own commit whose answer got lost).
  They get their first outcome; the others are decided again, as often as that goes on: each time there are
  fewer, because at least one got its outcome.
* VersionConflict: somebody else wrote. Decided again, at most DECISIONS_MAX times, then CONFLICT.
* LogUnavailable: UNAVAILABLE; the sender may repeat the command under the same id and learns what happened.
* Superseded: another writer is active. The error goes up and ends this process.

What is in the log must be readable for ever. So each event is read again before it is appended; a command whose event
can't be (or is too large for the bus) is refused alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec
import structlog

from domain.deciding.decide import decide
from domain.deciding.naming import named_streams
from domain.deciding.outcomes import Accepted, Outcome, Rejected
from domain.deciding.settle import Change, enact, settle
from domain.deciding.world import NotLoaded
from schemas.codes import Code
from schemas.events import TOPIC_OF, decode_event, encode_event
from schemas.replies import Reply
from schemas.tokens import EVENT_BYTES_MAX
from services.clock import Clock
from services.control.folded import Folded
from services.control.submission import Submission, refusal
from services.eventlog.port import (
    EventLog,
    LogUnavailable,
    NewEvent,
    NewReceipt,
    Receipt,
    ReceiptExists,
    VersionConflict,
)

QUEUE_MAX = 20_000
GROUP_MAX = 1_000
DECISIONS_MAX = 3
STREAMS_ASKED_MAX = 1_000  # NotLoaded rounds for one command; a node full of work needs a few hundred
CLEAN_S = 0.25  # between two tries to take back from the log what an append that failed had folded ahead
RECENT_MAX = 100_000  # receipts kept in memory

log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode
_decode_reply = msgspec.json.Decoder(Reply).decode
OnCommit = Callable[[Sequence[Change], int], Awaitable[None]]


class Decided(NamedTuple):
    """A decided command: its reply without position, the secret part, and its last event in the group."""

    submission: Submission
    reply: Reply
    secret: dict[str, object]
    last_event: int | None


def _event(change: Change) -> NewEvent:
    """As it is appended. Raises where it could not be read again."""
    event = NewEvent(change.stream, change.version, TOPIC_OF[type(change.event)], encode_event(change.event))
    decode_event(event.topic, event.state)
    return event


class Writer:
    """`on_commit(changes, position)` is awaited after each commit with what it appended, before replies."""

    def __init__(self, eventlog: EventLog, folded: Folded, clock: Clock, epoch: int, on_commit: OnCommit) -> None:
        self._log = eventlog
        self._folded = folded
        self._clock = clock
        self._epoch = epoch
        self._on_commit = on_commit
        self._queue: deque[Submission] = deque()
        self._waiting = asyncio.Event()
        self._recent: OrderedDict[str, Receipt] = OrderedDict()
        self._ahead: set[str] = set()
        self.commits = 0
        self.commands = 0

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def ahead(self) -> AbstractSet[str]:
        """Streams whose state in memory may not be the log's: of a commit under way, or one that failed."""
        return self._ahead

    async def submit(self, submission: Submission) -> None:
        """Put a command in the queue, or answer OVERLOADED at once where it is full."""
        if len(self._queue) >= QUEUE_MAX:
            await submission.respond(refusal(submission.command, Code.OVERLOADED, f"{QUEUE_MAX} commands are waiting"))
            return
        self._queue.append(submission)
        self._waiting.set()

    def committed(self, command_ids: Sequence[str]) -> list[str]:
        """Which of these are known to have an outcome in the log. Asks memory only; `recall` fills it."""
        return [ident for ident in command_ids if ident in self._recent]

    async def recall(self, command_ids: Sequence[str]) -> None:
        """Take from the log the outcomes that memory has not, as after a restart."""
        for ident, receipt in (await self._log.receipts(list(command_ids))).items():
            self._remember(ident, receipt)

    async def run(self) -> None:
        while True:
            await self.step()

    async def step(self) -> None:
        """Put memory right where an append failed, decide a group, commit it, answer. Waits for something to do."""
        await self._wait()
        group = [self._queue.popleft() for _ in range(min(GROUP_MAX, len(self._queue)))]
        if not self._queue:
            self._waiting.clear()
        try:
            await self._clean()
            if group:
                await self._preload(group)
                await self._work_off(group)
        except LogUnavailable as error:
            log.warning("log.unavailable", error=str(error), commands=len(group))
            for submission in group:
                await submission.respond(refusal(submission.command, Code.UNAVAILABLE, "the log cannot be reached"))

    async def _wait(self) -> None:
        """For commands; at most CLEAN_S while memory is ahead of the log, since heartbeats and expiry go by it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_S if self._ahead else None):
                await self._waiting.wait()

    # --- deciding -------------------------------------------------------------------------------------------

    async def _work_off(self, group: list[Submission]) -> None:
        decided: list[Decided] = []
        repeats: list[Submission] = []
        changes: list[Change] = []
        events: list[NewEvent] = []
        mine: set[str] = set()
        for submission in group:
            ident = submission.command.command_id
            if submission.receipt:
                if ident in mine:
                    repeats.append(submission)
                    continue
                if ident in self._recent:
                    await self._answer_again(submission, self._recent[ident])
                    continue
                mine.add(ident)
            decided.append(await self._decide(submission, changes, events))
        if decided:
            await self._commit(decided, changes, events)
        for submission in repeats:
            self._queue.append(submission)  # its first sending is settled now; it gets that outcome
            self._waiting.set()

    async def _decide(self, submission: Submission, changes: list[Change], events: list[NewEvent]) -> Decided:
        """Decide one command and let the world follow; its changes and events are added to the group's."""
        submission.decisions += 1
        command, world = submission.command, self._folded.world
        for _ in range(STREAMS_ASKED_MAX):
            world.now_ms = self._clock.now_ms()
            try:
                outcome: Outcome = decide(command, world)
                new = settle(outcome, world) if isinstance(outcome, Accepted) else []
                made = [_event(change) for change in new]
            except NotLoaded as need:
                await self._folded.load([need.stream])
                continue
            except Exception:  # a defect in one decision is told to its sender and must not end the writer
                log.exception("decide.failed", command=type(command).__name__, command_id=command.command_id)
                outcome, new, made = Rejected(Code.INTERNAL_ERROR, "deciding this command failed"), [], []
            break
        else:
            outcome, new, made = Rejected(Code.INTERNAL_ERROR, "the decision asked for too many streams"), [], []
        largest = max((len(event.state) for event in made), default=0)
        if largest > EVENT_BYTES_MAX:
            message = f"its event takes {largest} bytes; the bus carries {EVENT_BYTES_MAX}"
            outcome, new, made = Rejected(Code.MESSAGE_TOO_LARGE, message), [], []
        if isinstance(outcome, Rejected):
            return Decided(submission, refusal(command, outcome.code, outcome.message, outcome.detail), {}, None)
        self._ahead.update(change.stream for change in new)  # from here on memory is ahead of the log
        enact(new, world)
        changes.extend(new)
        events.extend(made)
        reply = Reply("accepted", command.command_id, result=outcome.result)
        return Decided(submission, reply, outcome.secret, len(changes) - 1 if new else None)

    async def _preload(self, group: list[Submission]) -> None:
        wanted = {stream for submission in group for stream in named_streams(submission.command)}
        await self._folded.load(self._folded.missing(wanted))

    # --- committing -----------------------------------------------------------------------------------------

    async def _commit(self, decided: list[Decided], changes: list[Change], events: list[NewEvent]) -> None:
        receipts = [
            NewReceipt(d.reply.command_id, d.submission.body_sha256, _encode(d.reply), d.last_event)
            for d in decided
            if d.submission.receipt
        ]
        if not events and not receipts:
            return await self._answer(decided, [])
        try:
            positions = await self._log.append(events, receipts, self._epoch)
        except (ReceiptExists, VersionConflict) as error:
            await self._clean()
            return await self._redecide(decided, error)
        self._ahead = set()
        self.commits += 1
        self.commands += len(decided)
        if positions:
            self._folded.position = positions[-1]
        for receipt in receipts:
            at = None if receipt.last_event is None else positions[receipt.last_event]
            self._remember(receipt.command_id, Receipt(receipt.body_sha256, receipt.outcome, at))
        if changes:
            await self._on_commit(changes, self._folded.position)
        self._folded.trim()
        return await self._answer(decided, positions)

    async def _answer(self, decided: list[Decided], positions: list[int]) -> None:
        last = self._folded.position
        for item in decided:
            position = last if item.last_event is None else positions[item.last_event]
            reply = msgspec.structs.replace(item.reply, position=position)
            if item.secret:
                reply = msgspec.structs.replace(reply, result={**reply.result, **item.secret})
            await item.submission.respond(reply)

    async def _redecide(self, decided: list[Decided], error: Exception) -> None:
        known = await self._log.receipts([d.reply.command_id for d in decided if d.submission.receipt])
        again: list[Submission] = []
        for item in decided:
            submission = item.submission
            receipt = known.get(item.reply.command_id) if submission.receipt else None
            if receipt is not None:
                self._remember(item.reply.command_id, receipt)
                await self._answer_again(submission, receipt)
            elif isinstance(error, ReceiptExists) and known:
                submission.decisions -= 1  # nothing was wrong with this one
                again.append(submission)
            elif submission.decisions >= DECISIONS_MAX:
                log.warning("append.conflict", command_id=item.reply.command_id, error=str(error))
                await submission.respond(refusal(submission.command, Code.CONFLICT, "the streams keep changing"))
            else:
                again.append(submission)
        self._queue.extendleft(reversed(again))
        if again:
            self._waiting.set()

    async def _clean(self) -> None:
        """Read again what an append that failed had folded ahead."""
        if self._ahead:
            await self._folded.load(self._ahead)
            self._ahead = set()

    async def _answer_again(self, submission: Submission, receipt: Receipt) -> None:
        if receipt.body_sha256 != submission.body_sha256:
            message = f"command_id {submission.command.command_id} was used for another command"
            await submission.respond(refusal(submission.command, Code.DUPLICATE_COMMAND, message))
            return
        first = _decode_reply(receipt.outcome)
        await submission.respond(msgspec.structs.replace(first, position=receipt.position, repeated=True))

    def _remember(self, command_id: str, receipt: Receipt) -> None:
        self._recent[command_id] = receipt
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)
