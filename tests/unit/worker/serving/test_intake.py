"""Invocations: bounds, deadlines and batches, with a model process that a test plays."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas.codes import Code, Refusal
from schemas.profiles import Limits, RuntimeProfile
from schemas.serving import Answer, Failure, ServeAnswer
from schemas.tasks.requests import Request
from schemas.tasks.text import Embedded, EmbedRequest, RerankRequest, TextChunk
from worker.model import frames
from worker.serving import intake
from worker.serving.gathering import TRIPS_QUIET
from worker.serving.intake import Intake, failure


class PlayedProcess:
    """Answers each batch when a test lets it."""

    def __init__(self) -> None:
        self.exited: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.batches: list[frames.Invoke] = []
        self.stops: list[frames.Stop] = []
        self.on_partial: Any = None
        self.go = asyncio.Semaphore(0)
        self.dies = False
        self.sent_ahead: set[int] = set()

    async def ask(self, request: frames.Invoke, timeout_ms: float) -> frames.Answer:
        self.batches.append(request)
        async with asyncio.timeout(timeout_ms / 1_000):
            await self.go.acquire()
        if self.dies:
            self.exited.set_result(None)
            raise Refusal(Code.CHILD_DIED, "it died")
        answers = [self.rows(len(one.texts)) for one in requests_of(request)]
        return frames.Batch([frames.Sent() if at in self.sent_ahead else each for at, each in enumerate(answers)])

    @staticmethod
    def rows(count: int) -> frames.Answered:
        result = Embedded(b"\0" * 16 * count, count, 4, [1] * count, [False] * count)
        return frames.Answered(msgspec.msgpack.encode(Answer(result, "a" * 64, "b" * 64, "1", 1.0)))

    def tell(self, stop: frames.Stop) -> None:
        self.stops.append(stop)


def requests_of(invoke: frames.Invoke) -> list[Any]:
    return [msgspec.msgpack.decode(body, type=Request) for body in invoke.requests]


class Desk:
    """One intake and what it answered."""

    def __init__(self, *, gathers: bool = False, **limits: int) -> None:
        profile = RuntimeProfile("sentence_transformers", "embedding", limits=Limits(**limits))
        facts = frames.Facts(4, 128, 1)
        self.process = PlayedProcess()
        self.hung: list[str] = []
        self.trips: list[asyncio.Future[bool]] = []
        model: Any = SimpleNamespace(process=self.process, profile=profile, facts=facts)
        self.intake = Intake(model, self.on_hung, self.round_trip if gathers else None)
        self.answers: dict[str, ServeAnswer] = {}
        self.chunks: list[TextChunk] = []

    async def round_trip(self) -> bool:
        self.trips.append(asyncio.get_running_loop().create_future())
        return await self.trips[-1]

    async def on_hung(self, message: str) -> None:
        self.hung.append(message)

    def ask(self, *texts: str, deadline_ms: int | None = None, name: str | None = None) -> Failure | None:
        request = EmbedRequest(list(texts), deadline_ms=deadline_ms, invocation_id=name)

        async def respond(body: bytes) -> None:
            answer = msgspec.msgpack.decode(body, type=ServeAnswer)
            if isinstance(answer, TextChunk):
                self.chunks.append(answer)
                return
            assert texts[0] not in self.answers, "answered twice"
            self.answers[texts[0]] = answer

        try:
            self.intake.accept(request, msgspec.msgpack.encode(request), respond)
        except Refusal as refusal:
            return failure(refusal.code, refusal.message)
        return None

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(5):
            while not set(names) <= set(self.answers):  # noqa: ASYNC110 - answers of these tests set no event
                await asyncio.sleep(0)

    async def until_batches(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.process.batches) < count:  # noqa: ASYNC110 - the played process sets no event
                await asyncio.sleep(0)


def code_of(answer: ServeAnswer | None) -> Code:
    assert isinstance(answer, Failure), answer
    return answer.code


async def test_what_waits_goes_together_up_to_the_bound() -> None:
    desk = Desk(batch_max=3)
    desk.ask("a")
    await desk.until_batches(1)
    for name in "bcdef":
        desk.ask(name)
    for _ in range(3):
        desk.process.go.release()
    await desk.until(*"abcdef")
    sizes = [[len(one.texts) for one in requests_of(batch)] for batch in desk.process.batches]
    assert sizes == [[1], [1, 1, 1], [1, 1]]
    assert desk.intake.invocations == 6
    await desk.intake.close(None, "")


async def halves(desk: Desk) -> None:
    """Two callers are being computed and two wait; then the two are answered."""
    for name in "cd":
        desk.ask(name)
    await desk.until_batches(1)
    for name in "ef":
        desk.ask(name)
    desk.process.go.release()
    await desk.until("c", "d")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only trips end a hold: a played batch takes no time, and so would a hold."""
    monkeypatch.setattr(intake, "SHARE", 1e9)
    monkeypatch.setattr(intake, "HOLD_SECONDS_MAX", 60.0)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def sizes(desk: Desk) -> list[int]:
    return [len(batch.requests) for batch in desk.process.batches]


@pytest.mark.usefixtures("patient")
async def test_callers_who_were_just_answered_are_let_into_the_next_batch() -> None:
    desk = Desk(gathers=True)
    await halves(desk)
    await settled()
    assert sizes(desk) == [2], "what waits is held"
    assert len(desk.trips) == 1
    desk.ask("g")
    await settled()
    assert sizes(desk) == [2]
    desk.ask("h")  # all who were expected
    await desk.until_batches(2)
    assert sizes(desk) == [2, 4]
    desk.trips[0].set_result(True)
    await settled()
    assert len(desk.trips) == 1
    await desk.intake.close(None, "")


@pytest.mark.usefixtures("patient")
async def test_what_waits_goes_when_nobody_comes() -> None:
    desk = Desk(gathers=True)
    await halves(desk)
    for made in range(TRIPS_QUIET):
        await settled()
        assert sizes(desk) == [2]
        desk.trips[made].set_result(True)
    await desk.until_batches(2)
    assert sizes(desk) == [2, 2]
    assert len(desk.trips) == TRIPS_QUIET
    await desk.intake.close(None, "")


@pytest.mark.usefixtures("patient")
async def test_what_waits_goes_when_the_bus_fails() -> None:
    desk = Desk(gathers=True)
    await halves(desk)
    await settled()
    desk.trips[0].set_result(False)
    await desk.until_batches(2)
    await desk.intake.close(None, "")


async def test_a_bus_that_does_not_answer_holds_nobody_for_long() -> None:
    desk = Desk(gathers=True)
    await halves(desk)
    await desk.until_batches(2)
    assert sizes(desk) == [2, 2]
    assert not desk.trips[0].done()
    await desk.intake.close(None, "")


async def test_a_full_batch_is_not_held() -> None:
    desk = Desk(gathers=True, batch_max=3)
    await halves(desk)
    desk.ask("g")
    await desk.until_batches(2)
    assert sizes(desk) == [2, 3]
    await desk.intake.close(None, "")


@pytest.mark.usefixtures("patient")
async def test_what_is_held_keeps_its_deadline_and_its_end() -> None:
    desk = Desk(gathers=True)
    await halves(desk)
    desk.ask("late", deadline_ms=20)
    await desk.until("late")
    assert code_of(desk.answers["late"]) is Code.DEADLINE_EXCEEDED
    await desk.intake.close(Code.NOT_RESIDENT, "it goes")
    await desk.until("e", "f")
    assert code_of(desk.answers["e"]) is Code.NOT_RESIDENT


async def test_who_is_answered_waits_no_more() -> None:
    desk = Desk(queue_max=2)
    desk.ask("computed")
    await desk.until_batches(1)
    for name in ("late", "later"):
        desk.ask(name, deadline_ms=1)
    await desk.until("late", "later")
    assert desk.ask("next") is None, "nobody waits: there is room"
    desk.ask("named", name="it")
    assert desk.intake.cancel("it")
    assert desk.ask("after a cancel") is None
    for _ in range(2):
        desk.process.go.release()
    await desk.until("next", "after a cancel")
    await desk.intake.close(None, "")


async def test_an_answer_that_went_ahead_of_its_batch_is_given_once() -> None:
    desk = Desk()
    for name in "ab":
        desk.ask(name)
    await desk.until_batches(1)
    desk.process.on_partial(frames.Early(1, 1, desk.process.rows(1).body))
    await desk.until("b")
    assert desk.intake.in_flight == 1
    desk.process.sent_ahead = {1}
    desk.process.go.release()
    await desk.until("a")
    assert (desk.intake.in_flight, desk.intake.invocations) == (0, 2)
    await desk.intake.close(None, "")


async def test_a_large_invocation_goes_alone_and_whole() -> None:
    desk = Desk(batch_max=2)
    desk.ask("a")
    await desk.until_batches(1)
    desk.ask("b", "b", "b", "b", "b")
    desk.ask("c")
    for _ in range(3):
        desk.process.go.release()
    await desk.until(*"abc")
    assert [len(batch.requests) for batch in desk.process.batches] == [1, 1, 1]
    answer = desk.answers["b"]
    assert isinstance(answer, Answer)
    assert answer.result.rows == 5
    await desk.intake.close(None, "")


async def test_bounds_have_codes() -> None:
    desk = Desk(items_max=2, characters_max=5, queue_max=1)
    assert code_of(desk.ask("a", "b", "c")) == Code.INPUT_TOO_LARGE
    assert code_of(desk.ask("abcdef")) == Code.INPUT_TOO_LARGE
    assert desk.ask("a") is None
    await desk.until_batches(1)
    assert desk.ask("b") is None
    assert code_of(desk.ask("c")) == Code.OVERLOADED
    await desk.intake.close(None, "")


async def test_deadline_answers_at_once_and_only_once() -> None:
    desk = Desk()
    desk.ask("computing", deadline_ms=20)
    await desk.until_batches(1)
    desk.ask("waiting", deadline_ms=20)
    await desk.until("computing", "waiting")
    assert code_of(desk.answers["computing"]) == Code.DEADLINE_EXCEEDED
    assert code_of(desk.answers["waiting"]) == Code.DEADLINE_EXCEEDED
    desk.ask("next")
    desk.process.go.release()  # the late result is dropped
    desk.process.go.release()
    await desk.until("next")
    assert isinstance(desk.answers["next"], Answer)
    assert [len(batch.requests) for batch in desk.process.batches] == [1, 1]  # what had expired was not computed
    assert desk.process.stops == [frames.Stop(1, 0)]  # and of what was computed the model was told
    assert desk.intake.in_flight == 0
    await desk.intake.close(None, "")


async def test_a_hanging_model_is_reported() -> None:
    desk = Desk(invoke_ms=20)
    desk.ask("a")
    await desk.until("a")
    async with asyncio.timeout(5):
        while not desk.hung:  # noqa: ASYNC110 - set by the intake's own task
            await asyncio.sleep(0.001)
    assert "40 ms" in desk.hung[0]
    await desk.intake.close(None, "")


async def test_a_dying_model_fails_what_it_had() -> None:
    desk = Desk()
    desk.process.dies = True
    desk.ask("a")
    desk.process.go.release()
    await desk.until("a")
    assert code_of(desk.answers["a"]) == Code.CHILD_DIED
    await desk.intake.close(Code.CHILD_DIED, "gone")


async def test_draining_waits_for_answers_and_says_what_is_left() -> None:
    desk = Desk()
    assert await desk.intake.drained(1_000) == 0
    desk.ask("a")
    assert await desk.intake.drained(10) == 1
    desk.process.go.release()
    assert await desk.intake.drained(5_000) == 0
    await desk.intake.close(None, "")


async def test_closing_answers_what_was_computing_and_what_waited() -> None:
    desk = Desk()
    desk.ask("a")
    await desk.until_batches(1)
    desk.ask("b")
    await desk.intake.close(Code.NOT_RESIDENT, "unloaded")
    await desk.until("a", "b")
    assert {code_of(answer) for answer in desk.answers.values()} == {Code.NOT_RESIDENT}


async def test_a_cancel_ends_what_waits_and_tells_the_model_of_what_it_computes() -> None:
    desk = Desk()
    desk.ask("computing", name="one")
    await desk.until_batches(1)
    desk.ask("waiting", name="two")
    assert code_of(desk.ask("again", name="two")) == Code.INPUT_INVALID
    assert desk.intake.cancel("two")
    assert desk.intake.cancel("one")
    assert not desk.intake.cancel("three")
    await desk.until("waiting")
    assert code_of(desk.answers["waiting"]) == Code.INVOCATION_CANCELLED
    assert desk.process.stops == [frames.Stop(1, 0)]
    desk.process.go.release()
    await desk.until("computing")
    assert not desk.intake.cancel("one")
    await desk.intake.close(None, "")


async def test_pieces_go_to_their_own_asker_while_it_waits() -> None:
    desk = Desk()
    desk.ask("a")
    await desk.until_batches(1)
    desk.process.on_partial(frames.Partial(1, 0, msgspec.msgpack.encode(TextChunk(0, "ahead"))))
    desk.process.on_partial(frames.Partial(7, 0, msgspec.msgpack.encode(TextChunk(0, "of another batch"))))
    desk.process.go.release()
    await desk.until("a")
    desk.process.on_partial(frames.Partial(1, 0, msgspec.msgpack.encode(TextChunk(1, "too late"))))
    await asyncio.sleep(0)
    assert desk.chunks == [TextChunk(0, "ahead")]
    await desk.intake.close(None, "")


async def test_a_request_of_another_task_is_refused() -> None:
    desk = Desk()

    async def respond(body: bytes) -> None:
        raise AssertionError("nothing was accepted")

    request = RerankRequest("query", ["document"])
    with pytest.raises(Refusal, match="INPUT_INVALID"):
        desk.intake.accept(request, msgspec.msgpack.encode(request), respond)
    await desk.intake.close(None, "")
