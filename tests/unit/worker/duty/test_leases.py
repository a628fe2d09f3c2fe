"""A lease by the worker's own clock: it ends before the control plane's does, and isn't renewed too early."""

from __future__ import annotations

from schemas.codes import Code
from schemas.commands import Command
from schemas.live import Beat, BeatReply
from schemas.replies import Reply
from schemas.work import VerifySpec, WorkOrder
from worker.duty.control import Unreachable
from worker.duty.leases import Lease, margin_ms

TERM_MS = 10_000
ORDER = WorkOrder(
    work_id="w1", kind="verify", attempt=1, generation="7", token="secret", lease_ms=TERM_MS, until_ms=0,
    deadline_ms=0, spec=VerifySpec("0" * 64, "x"),
)  # fmt: skip


class ScriptedControl:
    """Answers with what a test gives it, in order; None is no answer."""

    def __init__(self, *answers: Reply | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Command]] = []

    async def command(self, name: str, command: Command, timeout_ms: float) -> Reply:
        self.asked.append((name, command))
        answer = self.answers.pop(0)
        if answer is None:
            raise Unreachable("nobody answers")
        return answer

    async def beat(self, beat: Beat, timeout_ms: float) -> BeatReply:
        raise Unreachable("no beats here")


def accepted(**result: object) -> Reply:
    return Reply(outcome="accepted", command_id="c", result=dict(result))


def rejected(code: Code) -> Reply:
    return Reply(outcome="rejected", command_id="c", code=code)


def lease_at(now: list[float], control: ScriptedControl, sent_ms: float = 0.0, received_ms: float = 40.0) -> Lease:
    return Lease(ORDER, sent_ms, received_ms, control, "node", clock=lambda: now[0])


async def test_validity_counts_from_when_the_claim_was_sent() -> None:
    now = [40.0]
    lease = lease_at(now, ScriptedControl())
    assert lease.valid_until_ms == TERM_MS - margin_ms(TERM_MS) < TERM_MS
    now[0] = lease.valid_until_ms - 1
    assert lease.is_valid()
    now[0] = lease.valid_until_ms
    assert not lease.is_valid()
    lost = await lease.step()
    assert lost is not None
    assert lost.code == Code.LEASE_EXPIRED


async def test_renews_after_half_a_term_from_the_answer() -> None:
    now = [5_000.0]
    control = ScriptedControl(accepted(lease_ms=TERM_MS))
    lease = lease_at(now, control)
    assert await lease.step() is None
    assert control.asked == []
    now[0] = lease.renew_at_ms
    assert now[0] > 40.0 + TERM_MS / 2
    assert await lease.step() is None
    assert [name for name, _ in control.asked] == ["lease.renew"]
    assert lease.valid_until_ms == now[0] + TERM_MS - margin_ms(TERM_MS)


async def test_silence_and_early_refusals_are_tried_again_until_the_local_end() -> None:
    now = [5_300.0]
    control = ScriptedControl(None, rejected(Code.LEASE_RENEWAL_EARLY), rejected(Code.OVERLOADED), None)
    lease = lease_at(now, control)
    end_ms = lease.valid_until_ms
    for _ in range(4):
        now[0] = lease.renew_at_ms
        assert await lease.step() is None
    assert lease.valid_until_ms == end_ms
    now[0] = end_ms
    lost = await lease.step()
    assert lost is not None
    assert len(control.asked) == 4


async def test_a_refusal_ends_it_at_once() -> None:
    for code in (Code.LEASE_ENDED, Code.GENERATION_FENCED, Code.LEASE_TOKEN_WRONG, Code.WORK_ENDED):
        now = [5_300.0]
        lost = await lease_at(now, ScriptedControl(rejected(code))).step()
        assert lost is not None
        assert lost.code == code
