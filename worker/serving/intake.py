"""The invocations of one resident: accepted up to a bound, batched without a timer, answered once each.

Whatever waits when the model is free goes to it as one batch, up to the profile's `batch_max` items, so a
lone invocation waits for nobody and many share the work. An invocation that isn't answered by its deadline
is refused at that moment, wherever it is. A model that doesn't answer for HUNG_FACTOR times `invoke_ms`
hangs and is reported as such.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from schemas.codes import ADVICE, Code, Refusal
from schemas.serving import EmbedRequest, EmbedResult, Failure, ServeAnswer
from schemas.tokens import MESSAGE_BYTES_MAX
from worker.model import frames
from worker.model.loading import LoadedModel

HUNG_FACTOR = 2
ANSWER_OVERHEAD_BYTES = 1_024  # field names, digests and numbers around the vectors
ANSWER_ITEM_BYTES = 10  # one token count and one flag
UNLOAD_WAIT_SECONDS_MAX = 1.0

Respond = Callable[[ServeAnswer], Awaitable[None]]


def failure(code: Code, message: str) -> Failure:
    return Failure(code, message, ADVICE[code])


class _Invocation:
    """One accepted invocation; `respond` is called exactly once, or not at all when the worker may not answer."""

    __slots__ = ("answered", "expiry", "request", "respond")

    def __init__(self, request: EmbedRequest, respond: Respond) -> None:
        self.request = request
        self.respond = respond
        self.answered = False
        self.expiry: asyncio.TimerHandle | None = None


class Intake:
    """Accepts, batches and answers. `invocations` counts those the model answered."""

    def __init__(
        self,
        model: LoadedModel,
        artifact_id: str,
        profile_id: str,
        generation: str,
        on_hung: Callable[[str], Awaitable[None]],
    ) -> None:
        self._model = model
        self._artifact_id = artifact_id
        self._profile_id = profile_id
        self._generation = generation
        self._on_hung = on_hung
        self._limits = model.profile.limits
        self._waiting: deque[_Invocation] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._computing: list[_Invocation] = []
        self._responses: set[asyncio.Task[None]] = set()
        self.in_flight = 0
        self.invocations = 0
        self._task = asyncio.create_task(self.run())

    def refuse(self, request: EmbedRequest) -> Failure | None:
        """What is wrong with this invocation before the model sees it, or None."""
        limits, items = self._limits, len(request.texts)
        if request.prompt_name is not None and request.prompt_name not in self._model.profile.prompts:
            known = ", ".join(sorted(self._model.profile.prompts)) or "none"
            return failure(Code.INPUT_INVALID, f"there is no prompt `{request.prompt_name}`; there are: {known}")
        if items > limits.items_max:
            return failure(Code.INPUT_TOO_LARGE, f"{items} texts; the profile allows {limits.items_max}")
        characters = sum(map(len, request.texts))
        if characters > limits.characters_max:
            return failure(Code.INPUT_TOO_LARGE, f"{characters} characters; the profile allows {limits.characters_max}")
        answer_bytes = items * (self._model.facts.dimensions * 4 + ANSWER_ITEM_BYTES) + ANSWER_OVERHEAD_BYTES
        if answer_bytes > MESSAGE_BYTES_MAX:
            return failure(
                Code.INPUT_TOO_LARGE,
                f"the answer to {items} texts would take {answer_bytes} bytes; a message holds {MESSAGE_BYTES_MAX}",
            )
        if len(self._waiting) >= limits.queue_max:
            return failure(Code.OVERLOADED, f"{len(self._waiting)} invocations wait; that is the profile's bound")
        return None

    def accept(self, request: EmbedRequest, respond: Respond) -> None:
        """Take it in; `refuse` said it may come."""
        invocation = _Invocation(request, respond)
        deadline_ms = min(request.deadline_ms or self._limits.invoke_ms, self._limits.invoke_ms)
        invocation.expiry = asyncio.get_running_loop().call_later(
            deadline_ms / 1_000.0, self._expire, invocation, deadline_ms
        )
        self._waiting.append(invocation)
        self.in_flight += 1
        self._idle.clear()
        self._wake.set()

    def _expire(self, invocation: _Invocation, deadline_ms: int) -> None:
        self._answer(invocation, failure(Code.DEADLINE_EXCEEDED, f"no result within {deadline_ms} ms"))

    def _answer(self, invocation: _Invocation, answer: ServeAnswer | None) -> None:
        if invocation.answered:
            return
        invocation.answered = True
        if invocation.expiry is not None:
            invocation.expiry.cancel()
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()
        if answer is not None:
            response = asyncio.ensure_future(invocation.respond(answer))
            self._responses.add(response)
            response.add_done_callback(self._responses.discard)

    async def run(self) -> None:
        while await self.step():
            pass

    async def step(self) -> bool:
        """One batch through the model; False when it can't answer any more."""
        await self._wake.wait()
        batch = self._computing = self._take_batch()
        if not batch:
            self._wake.clear()
            return True
        request = frames.EmbedBatch([frames.Embed(one.request.texts, one.request.prompt_name) for one in batch])
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
        for invocation, rows in zip(batch, answer.answers, strict=True):
            self._answer(invocation, self._result(rows))
        return True

    def _take_batch(self) -> list[_Invocation]:
        """The first that wait, up to `batch_max` items but at least one invocation."""
        batch: list[_Invocation] = []
        items = 0
        while self._waiting:
            if self._waiting[0].answered:
                self._waiting.popleft()
                continue
            count = len(self._waiting[0].request.texts)
            if batch and items + count > self._limits.batch_max:
                break
            batch.append(self._waiting.popleft())
            items += count
        return batch

    def _fail(self, batch: list[_Invocation], code: Code, message: str) -> None:
        for invocation in batch:
            self._answer(invocation, failure(code, message))

    def _result(self, rows: frames.Rows | frames.Refused) -> ServeAnswer:
        if isinstance(rows, frames.Refused):
            return failure(rows.code, rows.message)
        self.invocations += 1
        return self._embedded(rows)

    def _embedded(self, rows: frames.Rows) -> EmbedResult:
        return EmbedResult(
            vectors=rows.vectors,
            rows=rows.rows,
            dimensions=rows.dimensions,
            tokens=rows.tokens,
            truncated=rows.truncated,
            artifact_id=self._artifact_id,
            profile_id=self._profile_id,
            generation=self._generation,
            compute_ms=rows.compute_ms,
        )

    def empty_result(self) -> EmbedResult:
        """The answer to no texts: no rows, of the model's width."""
        empty = frames.Rows(b"", 0, self._model.facts.dimensions, [], [], 0.0)
        return self._embedded(empty)

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
        for invocation in [*self._computing, *self._waiting]:
            self._answer(invocation, failure(code, message) if code is not None else None)
        self._waiting.clear()
        pending = [task for task in self._responses if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=UNLOAD_WAIT_SECONDS_MAX)
