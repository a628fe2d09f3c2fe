"""Claims whose answer was not heard: made again, sparingly with attempts, and not for ever."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from schemas.codes import Code
from schemas.commands import ClaimLease, Command
from schemas.devices import DeviceReading
from schemas.live import Beat, BeatReply
from schemas.replies import Reply
from schemas.work import VerifySpec, WorkOrder
from tests.unit.control.faulty import Control as Writing
from tests.unit.domain.story import Story
from worker.duty import claiming
from worker.duty.claiming import PAUSE_MS_MAX, PAUSE_MS_MIN, SENDINGS_MAX, Claim
from worker.duty.control import Unreachable
from worker.duty.leases import Lease, Lost

TERM_MS = 30_000
SECONDS_MAX = 10.0
ORDER = WorkOrder(
    work_id="w1", kind="verify", attempt=1, generation="7", token="secret", lease_ms=TERM_MS, until_ms=0,
    deadline_ms=0, spec=VerifySpec("0" * 64, "x"),
)  # fmt: skip


def accepted(**result: object) -> Reply:
    return Reply(outcome="accepted", command_id="c", result=dict(result))


def rejected(code: Code) -> Reply:
    return Reply(outcome="rejected", command_id="c", code=code)


GRANTED = accepted(**msgspec.to_builtins(ORDER))
TOLD_BEFORE = msgspec.structs.replace(accepted(work_id="w1", attempt=1), repeated=True)
OVER = rejected(Code.WORK_ENDED)


class Plane:
    """Answers claims with what a test gives it, in order; None is no answer. Each takes `takes_ms`."""

    def __init__(self, *answers: Reply | None, takes_ms: float = 0.0) -> None:
        self.answers = iter(answers)
        self.claims: list[ClaimLease] = []
        self.takes_ms = takes_ms
        self.now_ms = 0.0
        self.asked = asyncio.Event()

    async def command(self, name: str, command: Command, timeout_ms: float) -> Reply:
        assert name == "lease.claim"
        assert isinstance(command, ClaimLease)
        self.claims.append(command)
        self.now_ms += self.takes_ms
        self.asked.set()
        answer = next(self.answers)
        if answer is None:
            raise Unreachable("nobody answers")
        return answer

    async def beat(self, beat: Beat, timeout_ms: float) -> BeatReply:
        raise Unreachable("no beats here")

    @property
    def ids(self) -> list[str]:
        return [each.command_id for each in self.claims]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, each of them over at once."""
    made: list[float] = []

    async def pause(claim: Claim, pause_ms: float) -> None:
        made.append(pause_ms)

    monkeypatch.setattr(Claim, "_pause", pause)
    return made


def claim_of(plane: Plane, **options: Any) -> Claim:
    return Claim(plane, "w1", "node", "7", TERM_MS, clock=lambda: plane.now_ms, **options)


async def test_what_is_heard_at_once_is_asked_once(pauses: list[float]) -> None:
    plane = Plane(GRANTED)
    lease = await claim_of(plane).run()
    assert isinstance(lease, Lease)
    assert (lease.order, len(plane.claims), pauses) == (ORDER, 1, [])


async def test_silence_is_asked_again_with_the_same_command_which_takes_one_attempt_at_most(
    pauses: list[float],
) -> None:
    plane = Plane(None, None, GRANTED)
    assert isinstance(await claim_of(plane).run(), Lease)
    assert len(set(plane.ids)) == 1


async def test_a_token_that_was_told_to_nobody_is_claimed_anew_and_measured_anew(pauses: list[float]) -> None:
    measured = itertools.count(10, 10)

    async def measure() -> list[DeviceReading]:
        return [DeviceReading(0, 100, next(measured))]

    plane = Plane(None, TOLD_BEFORE, GRANTED)
    lease = await claim_of(plane, measure=measure).run()
    assert isinstance(lease, Lease)
    first, second, third = plane.claims
    assert first == second
    assert third.command_id != first.command_id
    assert [each.devices[0].used_bytes for each in plane.claims] == [10, 10, 20]


async def test_a_grant_without_a_token_is_none(pauses: list[float]) -> None:
    untold = accepted(**{**msgspec.to_builtins(ORDER), "token": ""})
    plane = Plane(untold, OVER)
    assert await claim_of(plane).run() == Lost(Code.WORK_ENDED, "")
    assert len(set(plane.ids)) == 2


async def test_silence_that_lasts_is_measured_anew(pauses: list[float]) -> None:
    plane = Plane(*[None] * SENDINGS_MAX, GRANTED)
    assert isinstance(await claim_of(plane).run(), Lease)
    assert plane.ids[0] == plane.ids[SENDINGS_MAX - 1] != plane.ids[SENDINGS_MAX]


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.OVERLOADED, Code.CONFLICT])
async def test_a_control_plane_that_cannot_say_is_asked_again(code: Code, pauses: list[float]) -> None:
    plane = Plane(rejected(code), GRANTED)
    assert isinstance(await claim_of(plane).run(), Lease)
    assert len(set(plane.ids)) == 1


@pytest.mark.parametrize(
    "code",
    [Code.WORK_ENDED, Code.WORK_NOT_YOURS, Code.LEASE_HELD, Code.GENERATION_FENCED, Code.NODE_DISABLED,
     Code.WORK_ATTEMPTS_EXHAUSTED, Code.UNKNOWN_STREAM, Code.MESSAGE_TOO_LARGE],
)  # fmt: skip
async def test_any_other_refusal_is_the_end_of_it(code: Code, pauses: list[float]) -> None:
    plane = Plane(None, rejected(code))
    assert await claim_of(plane).run() == Lost(code, "")
    assert len(plane.claims) == 2


@pytest.mark.parametrize(
    ("said", "heard"),
    [("DEVICE_MEMORY_SHORT", Code.DEVICE_MEMORY_SHORT), ("WORK_CANCELLED", Code.WORK_CANCELLED),
     ("A_CODE_OF_LATER", Code.INTERNAL_ERROR)],
)  # fmt: skip
async def test_work_that_its_claim_has_ended_is_over_and_no_order(said: str, heard: Code, pauses: list[float]) -> None:
    """An accepted answer has no token here, and a repeated one says the same."""
    over = msgspec.structs.replace(accepted(work_id="w1", refused=said, message="why"), repeated=True)
    assert await claim_of(Plane(over)).run() == Lost(heard, "why")


async def test_an_order_that_cannot_be_read_is_a_defect(pauses: list[float]) -> None:
    lost = await claim_of(Plane(accepted(token="t", nonsense=1))).run()
    assert isinstance(lost, Lost)
    assert lost.code == Code.INTERNAL_ERROR


async def test_the_pause_grows_to_a_bound_and_a_term_is_the_end(pauses: list[float]) -> None:
    plane = Plane(*[None] * 100, takes_ms=TERM_MS / 20)
    lost = await claim_of(plane).run()
    assert isinstance(lost, Lost)
    assert lost.code == Code.UNAVAILABLE
    assert plane.now_ms <= TERM_MS
    assert pauses[0] == PAUSE_MS_MIN
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MS_MAX


async def test_who_is_told_to_stop_claims_at_once_and_hears_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "PAUSE_MS_MIN", SECONDS_MAX * 1_000)
    plane = Plane(TOLD_BEFORE, accepted(work_id="w1", refused="WORK_CANCELLED", message="why"))
    claim = claim_of(plane)
    running = asyncio.create_task(claim.run())
    await plane.asked.wait()
    claim.hurry()
    async with asyncio.timeout(SECONDS_MAX / 2):
        assert await running == Lost(Code.WORK_CANCELLED, "why")


@pytest.mark.parametrize("fault", ["lost ack", "landed, unavailable"])
async def test_a_grant_whose_token_a_failing_log_swallowed_is_claimed_again(fault: str, pauses: list[float]) -> None:
    """Against the writer itself: no lease is left that nobody can use."""
    story = Story()
    work_id = story.probe()
    writing = await Writing.after(story)
    writing.clock.at_ms = story.world.now_ms
    writing.log.faults.append(fault)

    class Asking(Plane):
        async def command(self, name: str, command: Command, timeout_ms: float) -> Reply:
            (reply,) = await writing.ask(command)
            return reply

    lease = await Claim(Asking(), work_id, "n1", "1", TERM_MS).run()
    assert isinstance(lease, Lease), lease
    held = writing.folded.world.fleet.open_work[work_id].lease
    assert held is not None
    assert held.attempt == lease.order.attempt == 2
