"""The invocations of one resident: accepted up to a bound, batched without a timer, answered once each.

Whatever waits when the model is free goes to it as one batch, up to the profile's `batch_max` items, so a
lone invocation waits for nobody and many share the work. Callers that were just answered and ask again at once are
let into the next batch (see `gathering`). An invocation that isn't answered by its deadline
is refused at that moment, wherever it is, and the model is told that nobody waits for it. A cancel ends one that
waits and tells the model of one that is computed. A model that doesn't answer for HUNG_FACTOR times `invoke_ms`
hangs and is reported as such.

Answers of the model are passed on as the bytes it made; only refusals are made here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from schemas.codes import ADVICE, Code, Refusal
from schemas.serving import Failure
from schemas.tasks.requests import Request
from worker.model import frames
from worker.model.loading import LoadedModel
from worker.serving import bounds
from worker.serving.gathering import SHARE, Gathering

HUNG_FACTOR = 2
UNLOAD_WAIT_SECONDS_MAX = 1.0
HOLD_SECONDS_MAX = 0.25  # of a hold, where round trips to the bus do not end it
BATCH_BYTES_MAX = frames.FRAME_BYTES_MAX - 1024 * 1024  # of the requests of one batch, framing left out

Respond = Callable[[bytes], Awaitable[None]]
RoundTrip = Callable[[], Awaitable[bool]]  # to the bus and back; False where it does not answer
_encode = msgspec.msgpack.Encoder().encode


def failure(code: Code, message: str) -> Failure:
    return Failure(code, message, ADVICE[code])


class _Invocation:
    """One accepted invocation; its answer is given exactly once, or not at all when the worker may not answer."""

    __slots__ = ("answered", "body", "expiry", "invocation_id", "items", "place", "respond")

    def __init__(self, request: Request, body: bytes, respond: Respond) -> None:
        self.invocation_id = request.invocation_id
        self.items = max(bounds.items_of(request), 1)
        self.body = body
        self.respond = respond
        self.answered = False
        self.expiry: asyncio.TimerHandle | None = None
        self.place: tuple[int, int] | None = None  # number and index of the Invoke it is computed in


class _Hold(NamedTuple):
    """What waits is held: since when, after a batch that took how long, and what ends it at the latest."""

    begun_s: float
    batch_s: float
    bound: asyncio.TimerHandle


class Intake:
    """Accepts, batches and answers. `invocations` counts those the model answered."""

    def __init__(
        self, model: LoadedModel, on_hung: Callable[[str], Awaitable[None]], round_trip: RoundTrip | None = None
    ) -> None:
        self._model = model
        self._round_trip = round_trip
        self._gathering = Gathering()
        self._hold: _Hold | None = None
        self._on_hung = on_hung
        self._limits = model.profile.limits
        self._waiting: dict[_Invocation, None] = {}  # in the order they came; who is answered is out at once
        self._named: dict[str, _Invocation] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._computing: list[_Invocation] = []
        self._responses: set[asyncio.Future[None]] = set()
        self._number = 0
        self.in_flight = 0
        self.invocations = 0
        model.process.on_partial = self._pass_on
        self._task = asyncio.create_task(self.run())

    def accept(self, request: Request, body: bytes, respond: Respond, deadline_ms: float | None = None) -> None:
        """Take it in; raises Refusal. `body` is what `request` was decoded from; `deadline_ms` is what is left."""
        bounds.check(request, self._model.profile)
        if len(self._waiting) >= self._limits.queue_max:
            raise Refusal(Code.OVERLOADED, f"{len(self._waiting)} invocations wait; that is the profile's bound")
        name = request.invocation_id
        if name is not None and name in self._named:
            raise Refusal(Code.INPUT_INVALID, f"an invocation `{name}` is under way already")
        invocation = _Invocation(request, body, respond)
        if name is not None:
            self._named[name] = invocation
        asked_ms = deadline_ms if deadline_ms is not None else request.deadline_ms
        bound_ms = min(asked_ms or self._limits.invoke_ms, self._limits.invoke_ms)
        invocation.expiry = asyncio.get_running_loop().call_later(
            bound_ms / 1_000.0, self._expire, invocation, bound_ms
        )
        self._waiting[invocation] = None
        self.in_flight += 1
        self._idle.clear()
        if self._hold is None or len(self._waiting) >= self._gathering.expected or self._fill_a_batch():
            self._wake.set()

    def cancel(self, invocation_id: str) -> bool:
        """Whether an invocation of this name was under way."""
        invocation = self._named.get(invocation_id)
        if invocation is None:
            return False
        if invocation.place is None:
            self._refuse(invocation, Code.INVOCATION_CANCELLED, "it was cancelled before the model saw it")
        else:
            self._model.process.tell(frames.Stop(*invocation.place))
        return True

    def _expire(self, invocation: _Invocation, deadline_ms: float) -> None:
        if invocation.place is not None:
            self._model.process.tell(frames.Stop(*invocation.place))
        self._refuse(invocation, Code.DEADLINE_EXCEEDED, f"no result within {deadline_ms:.0f} ms")

    def _refuse(self, invocation: _Invocation, code: Code, message: str) -> None:
        self._answer(invocation, None if invocation.answered else _encode(failure(code, message)))

    def _answer(self, invocation: _Invocation, answer: bytes | None) -> None:
        if invocation.answered:
            return
        invocation.answered = True
        invocation.body = b""
        self._waiting.pop(invocation, None)
        if invocation.invocation_id is not None:
            self._named.pop(invocation.invocation_id, None)
        if invocation.expiry is not None:
            invocation.expiry.cancel()
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()
        if answer is not None:
            self._send(invocation, answer)

    def _send(self, invocation: _Invocation, body: bytes) -> None:
        response = asyncio.ensure_future(invocation.respond(body))
        self._responses.add(response)
        response.add_done_callback(self._responses.discard)

    def _give(self, invocation: _Invocation, body: bytes) -> None:
        self.invocations += 1
        self._answer(invocation, body)

    def _pass_on(self, ahead: frames.Partial | frames.Early) -> None:
        """What the model says before the Batch."""
        if ahead.number != self._number or ahead.index >= len(self._computing):
            return
        invocation = self._computing[ahead.index]
        if isinstance(ahead, frames.Early):
            self._give(invocation, ahead.body)
        elif not invocation.answered:
            self._send(invocation, ahead.body)

    async def run(self) -> None:
        while await self.step():
            pass

    async def step(self) -> bool:
        """One batch through the model; False when it can't answer any more."""
        await self._wake.wait()
        self._release()  # of a hold, where all who were expected wait
        self._computing = self._take_batch()
        if not self._computing:
            self._wake.clear()
            return True
        try:
            return await self._compute(self._computing)
        finally:
            self._computing = []

    async def _compute(self, batch: list[_Invocation]) -> bool:
        self._number += 1
        for index, invocation in enumerate(batch):
            invocation.place = (self._number, index)
        request = frames.Invoke(self._number, [one.body for one in batch])
        begun = asyncio.get_running_loop().time()
        bound_ms = self._limits.invoke_ms * HUNG_FACTOR
        try:
            answer = await self._model.process.ask(request, bound_ms)
        except TimeoutError:
            self._fail(batch, Code.DEADLINE_EXCEEDED, "the model did not answer")
            # Not awaited here: ending the model closes this intake, which ends this task.
            self._ending = asyncio.ensure_future(self._on_hung(f"the model process gave no answer for {bound_ms} ms"))
            return False
        except Refusal as refusal:
            self._fail(batch, refusal.code, refusal.message)
            return not self._model.process.exited.done()
        if not isinstance(answer, frames.Batch) or len(answer.answers) != len(batch):
            self._fail(batch, Code.INTERNAL_ERROR, "the model process answered out of step")
            return True
        for invocation, result in zip(batch, answer.answers, strict=True):
            if isinstance(result, frames.Refused):
                self._refuse(invocation, result.code, result.message)
            elif isinstance(result, frames.Answered):
                self._give(invocation, result.body)
        self._begin_hold(len(batch), asyncio.get_running_loop().time() - begun)
        return True

    def _begin_hold(self, answered: int, took_s: float) -> None:
        """Let those who were just answered into the next batch, if they come at once."""
        if self._round_trip is None or self._fill_a_batch():
            return
        if self._gathering.done(answered, len(self._waiting), self._limits.batch_max):
            self._wake.clear()
            loop = asyncio.get_running_loop()
            bound = loop.call_later(min(took_s * SHARE, HOLD_SECONDS_MAX), self._release)
            self._hold = _Hold(loop.time(), took_s, bound)
            self._trips = asyncio.create_task(self._make_trips(self._round_trip, self._hold))

    async def _make_trips(self, round_trip: RoundTrip, hold: _Hold) -> None:
        """Not cancelled when the hold ends: it sees that, and its last trip is nobody's concern."""
        while await round_trip() and self._hold is hold and self._gathering.trip(len(self._waiting)):
            pass
        if self._hold is hold:
            self._release()

    def _release(self) -> None:
        """End the hold, where there is one."""
        if self._hold is not None:
            share = (asyncio.get_running_loop().time() - self._hold.begun_s) / self._hold.batch_s
            self._gathering.over(len(self._waiting), share)
            self._hold.bound.cancel()
            self._hold = None
            self._wake.set()

    def _fill_a_batch(self) -> bool:
        return sum(one.items for one in self._waiting) >= self._limits.batch_max

    def _take_batch(self) -> list[_Invocation]:
        """The first that wait, up to `batch_max` items and BATCH_BYTES_MAX, but at least one invocation."""
        batch: list[_Invocation] = []
        items = size = 0
        for invocation in self._waiting:
            items += invocation.items
            size += len(invocation.body)
            if batch and (items > self._limits.batch_max or size > BATCH_BYTES_MAX):
                break
            batch.append(invocation)
        for invocation in batch:
            del self._waiting[invocation]
        return batch

    def _fail(self, batch: list[_Invocation], code: Code, message: str) -> None:
        for invocation in batch:
            self._refuse(invocation, code, message)

    async def drained(self, timeout_ms: float) -> int:
        """Wait until nothing accepted is unanswered; how many are left when the time is up."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000.0):
                await self._idle.wait()
        except TimeoutError:
            return self.in_flight
        return 0

    async def close(self, code: Code | None, message: str) -> None:
        """End the intake. What is unanswered fails with `code`, or stays unanswered where there is none to give."""
        self._task.cancel()
        self._release()
        for invocation in [*self._computing, *self._waiting]:
            if code is not None:
                self._refuse(invocation, code, message)
            else:
                self._answer(invocation, None)
        pending = [task for task in self._responses if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=UNLOAD_WAIT_SECONDS_MAX)
