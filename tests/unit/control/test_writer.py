"""The writer: one outcome per command, decided in order and committed in groups."""

from __future__ import annotations

import msgspec
import pytest

from domain.deciding.outcomes import Accepted, Outcome
from domain.deciding.world import World
from schemas import commands as c
from schemas.artifacts import FileEntry
from schemas.codes import Code
from services.control import writer as writer_module
from services.control.submission import body_digest
from services.eventlog.port import LogUnavailable
from tests.unit.control.asking import disable, enrol, told
from tests.unit.control.faulty import Control
from tests.unit.domain.story import CREDENTIAL, environment


@pytest.fixture
async def control() -> Control:
    return await Control.start()


# --- groups and repeats -------------------------------------------------------------------------------------


async def test_what_waits_together_is_committed_together(control: Control) -> None:
    replies = await control.ask(*(enrol(f"n{number}") for number in range(50)), disable("n7"))
    assert told(replies) == ["accepted"] * 51
    assert [reply.position for reply in replies] == list(range(1, 52))
    assert control.log.appends == 1
    assert len(control.announced) == 51
    await control.assert_world_is_the_log()


async def test_each_command_of_a_group_sees_what_came_before_it(control: Control) -> None:
    replies = await control.ask(disable(command_id="a"), enrol(), disable(command_id="b"), disable(command_id="c"))
    assert told(replies) == ["UNKNOWN_STREAM", "accepted", "accepted", "accepted"]
    assert [reply.position for reply in replies[1:]] == [1, 2, 2]  # the last asked for what held already
    assert (await control.log.receipts(["a", "c"]))["c"].position is None


async def test_a_duplicate_in_the_same_group_gets_the_first_outcome(control: Control) -> None:
    first, second, third = await control.ask(enrol(), enrol(), enrol(actor="bob"))
    assert (first.outcome, first.position, first.repeated) == ("accepted", 1, False)
    assert (second.outcome, second.position, second.repeated) == ("accepted", 1, True)
    assert third.code is Code.DUPLICATE_COMMAND
    assert await control.log.last_position() == 1


async def test_a_repeat_is_answered_from_memory_and_after_a_restart_from_the_log(control: Control) -> None:
    (first,) = await control.ask(enrol())
    appends = control.log.appends
    (again,) = await control.ask(enrol())
    assert control.log.appends == appends
    other = await Control.start(control.log.log)
    (later,) = await other.ask(enrol())
    expected = msgspec.structs.replace(first, repeated=True)
    assert again == later == expected
    assert await control.log.last_position() == 1


async def test_a_rejection_is_repeated_too(control: Control) -> None:
    (first,) = await control.ask(disable())
    await control.ask(enrol())
    (again,) = await control.ask(disable())
    assert (again.code, again.repeated) == (first.code, True)


def test_a_trace_is_no_part_of_what_makes_a_command_the_same() -> None:
    assert body_digest(enrol(traceparent="00-a-b-01")) == body_digest(enrol(traceparent="00-c-d-01"))
    assert body_digest(enrol()) != body_digest(enrol(actor="bob"))
    same = {"command_id": "x", "actor": "a", "node_id": "n"}
    assert body_digest(c.EnableNode(**same)) != body_digest(c.DisableNode(**same))


# --- what a reply holds -------------------------------------------------------------------------------------


async def test_a_secret_is_told_once_and_kept_nowhere(control: Control) -> None:
    claim = await queued_work(control)
    (first,) = await control.ask(claim)
    token = first.result["token"]
    assert first.result["files"]
    (again,) = await control.ask(claim)
    assert (again.repeated, again.result) == (True, {"work_id": claim.work_id, "attempt": 1})
    kept = b"".join(row.state for row in await control.log.read(0, 100))
    kept += b"".join(receipt.outcome for receipt in (await control.log.receipts([claim.command_id])).values())
    assert token.encode() not in kept


async def test_a_claim_whose_answer_got_lost_tells_no_secret_but_can_be_made_again(control: Control) -> None:
    claim = await queued_work(control)
    control.log.faults.append("lost ack")
    (reply,) = await control.ask(claim)
    assert (reply.repeated, "token" in reply.result) == (True, False)
    (reply,) = await control.ask(msgspec.structs.replace(claim, command_id="claim-2"))
    assert reply.result["attempt"] == 2
    assert reply.result["token"]


async def test_commands_of_the_control_plane_leave_no_receipt(control: Control) -> None:
    await control.ask(enrol())
    lose = c.LoseSession(command_id="tick", actor="control", node_id="n1", generation="0", silent_ms=1)
    assert told(await control.ask(lose, receipt=False)) == ["accepted"]
    assert await control.log.receipts(["tick"]) == {}
    assert await control.log.last_position() == 1


async def test_a_defect_in_deciding_is_an_answer_and_not_the_end(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(command: object, world: object) -> Accepted:
        raise ZeroDivisionError

    monkeypatch.setattr(writer_module, "decide", broken)
    assert told(await control.ask(enrol())) == ["INTERNAL_ERROR"]
    monkeypatch.undo()
    assert told(await control.ask(enrol("n2"))) == ["accepted"]


async def test_the_queue_has_a_bound(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_MAX", 3)
    monkeypatch.setattr(writer_module, "GROUP_MAX", 2)
    replies = await control.ask(*(enrol(f"n{number}") for number in range(5)))
    assert told(replies) == ["accepted"] * 3 + ["OVERLOADED"] * 2
    assert control.log.appends == 2


async def test_outcomes_are_known_from_memory_and_recalled_from_the_log(control: Control) -> None:
    await control.ask(enrol())
    assert control.writer.committed(["enrol-n1", "never"]) == ["enrol-n1"]
    other = await Control.start(control.log.log)
    assert other.writer.committed(["enrol-n1"]) == []
    other.log.down = True
    with pytest.raises(LogUnavailable):
        await other.writer.recall(["enrol-n1"])
    other.log.down = False
    await other.writer.recall(["never", "enrol-n1"])
    assert other.writer.committed(["never", "enrol-n1"]) == ["enrol-n1"]


async def queued_work(control: Control) -> c.ClaimLease:
    """A node with a worker and queued `verify` work; the command that claims it."""
    await control.ask(enrol())
    by = {"actor": "ann"}
    register = c.RegisterWorker(
        command_id="register", node_id="n1", credential=CREDENTIAL, boot_id="b", environment=environment(),
        capabilities={}, session_public_key="key", artifact_root="/srv", inventory=[], **by,
    )  # fmt: skip
    files = [FileEntry("model.safetensors", 10, "a" * 64)]
    _, artifact = await control.ask(register, c.RegisterArtifact(command_id="artifact", name="mini", files=files, **by))
    verify = c.VerifyArtifact(
        command_id="verify", artifact_id=artifact.result["artifact_id"], node_id="n1", location="mini", **by
    )
    (requested,) = await control.ask(verify)
    return c.ClaimLease(command_id="claim", work_id=requested.result["work_id"], node_id="n1", generation="1", **by)


async def test_what_could_not_be_read_again_is_not_appended(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """Structs do not check themselves when they are made; what the log holds is decoded strictly, for ever."""
    decide = writer_module.decide

    def unreadable(command: c.Command, world: World) -> Outcome:
        outcome = decide(command, world)
        if isinstance(outcome, Accepted) and command.command_id == "bad":
            event = msgspec.structs.replace(outcome.events[0].event, at_ms=-1)
            return Accepted([msgspec.structs.replace(outcome.events[0], event=event)], outcome.result)
        return outcome

    monkeypatch.setattr(writer_module, "decide", unreadable)
    replies = await control.ask(enrol("n1"), enrol("n2", command_id="bad"), enrol("n3"))
    assert told(replies) == ["accepted", "INTERNAL_ERROR", "accepted"]
    await control.assert_world_is_the_log()


async def test_an_event_that_the_bus_cannot_carry_is_refused(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "EVENT_BYTES_MAX", 100)
    (reply,) = await control.ask(enrol("n1"))
    assert reply.code is Code.MESSAGE_TOO_LARGE
    monkeypatch.undo()
    assert told(await control.ask(enrol("n1", command_id="again"))) == ["accepted"]
    await control.assert_world_is_the_log()
