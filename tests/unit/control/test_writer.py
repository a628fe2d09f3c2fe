"""The writer: one outcome per command, whatever the log does, and a memory that never runs ahead of it."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from domain.outcomes import Accepted
from domain.states import DeploymentState
from schemas import commands as c
from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.replies import Reply
from services.control import writer as writer_module
from services.control.writer import Submission, body_digest
from services.eventlog.port import LogUnavailable, NewEvent, Superseded
from tests.unit.control.faulty import Control
from tests.unit.domain.story import CREDENTIAL, Story, environment

SHA = hashlib.sha256(CREDENTIAL.encode()).hexdigest()


@pytest.fixture
async def control() -> Control:
    return await Control.start()


def enrol(node_id: str = "n1", command_id: str = "", **fields: Any) -> c.EnrolNode:
    values = {"command_id": command_id or f"enrol-{node_id}", "actor": "ann", "credential_sha256": SHA, **fields}
    return c.EnrolNode(node_id=node_id, **values)


def disable(node_id: str = "n1", command_id: str = "disable") -> c.DisableNode:
    return c.DisableNode(command_id=command_id, actor="ann", node_id=node_id)


def told(replies: list[Reply]) -> list[str]:
    return [str(reply.code or reply.outcome) for reply in replies]


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


# --- when the append fails ----------------------------------------------------------------------------------


async def test_a_commit_whose_answer_got_lost_is_answered_once_with_its_outcome(control: Control) -> None:
    control.log.faults.append("lost ack")
    replies = await control.ask(enrol("n1"), enrol("n2"), disable("ghost"))
    assert told(replies) == ["accepted", "accepted", "UNKNOWN_STREAM"]
    assert [reply.position for reply in replies[:2]] == [1, 2]
    assert await control.log.last_position() == 2
    await control.assert_world_is_the_log()


async def test_old_commands_among_new_ones_hold_up_nobody(control: Control) -> None:
    """After a restart the durable stream delivers again what was decided before; the others still get through."""
    await control.ask(*(enrol(f"old{number}") for number in range(6)))
    fresh = await Control.start(control.log.log)
    heard: dict[str, Reply] = {}

    async def hear(reply: Reply) -> None:
        heard[reply.command_id] = reply

    for number in range(6):
        await fresh.writer.submit(Submission(enrol(f"old{number}"), hear))
        if number == 0:
            await fresh.writer.submit(Submission(enrol("new"), hear))
        await fresh.writer.step()  # decided with another old one each time
    while fresh.writer.queued:
        await fresh.writer.step()
    assert told(list(heard.values())) == ["accepted"] * 7
    assert [reply.repeated for name, reply in sorted(heard.items())] == [False] + [True] * 6
    await fresh.assert_world_is_the_log()


async def test_a_conflict_is_decided_again_on_what_is_there_now(control: Control) -> None:
    await control.ask(enrol())
    theirs = NewEvent(
        "node-n1", 2, "node.disabled.v1", b'{"at_ms":1,"command_id":"x","actor":"x","node_id":"n1","reason":""}'
    )
    await control.log.log.append([theirs], [], 1)
    (reply,) = await control.ask(disable())
    assert (reply.outcome, reply.position) == ("accepted", 1)  # it is disabled already: nothing to append
    assert await control.log.last_position() == 2
    await control.assert_world_is_the_log()


async def test_conflicts_without_end_are_given_up(control: Control) -> None:
    control.log.faults.extend(["conflict"] * writer_module.DECISIONS_MAX)
    (reply,) = await control.ask(enrol())
    assert reply.code is Code.CONFLICT
    assert await control.log.receipts(["enrol-n1"]) == {}
    await control.assert_world_is_the_log()
    (reply,) = await control.ask(enrol())  # the sender tries again
    assert (reply.outcome, reply.repeated) == ("accepted", False)


@pytest.mark.parametrize("fault", ["unavailable", "landed, unavailable"])
async def test_an_unreachable_log_is_said_and_the_sender_learns_later_what_happened(
    control: Control, fault: str
) -> None:
    control.log.faults.append(fault)
    replies = await control.ask(enrol("n1"), disable("n1"))
    assert told(replies) == ["UNAVAILABLE", "UNAVAILABLE"]
    replies = await control.ask(enrol("n1"), disable("n1"))
    assert told(replies) == ["accepted", "accepted"]
    assert replies[0].repeated is (fault == "landed, unavailable")
    assert await control.log.last_position() == 2
    await control.assert_world_is_the_log()


async def test_nothing_is_decided_ahead_while_the_log_is_down(control: Control) -> None:
    await control.ask(enrol())
    control.log.down = True
    for number in range(3):
        assert told(await control.ask(disable(command_id=f"d{number}"))) == ["UNAVAILABLE"]
    control.log.down = False
    assert told(await control.ask(disable(command_id="d9"))) == ["accepted"]
    await control.assert_world_is_the_log()


async def test_a_log_that_fails_in_the_middle_of_a_group_takes_the_whole_group_back(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command is decided and folded ahead; then reading for the second one fails."""
    await control.ask(enrol("n1"), enrol("n2"))
    del control.folded.world.states["node-n2"]  # as if trimmed

    async def no_preload(group: object) -> None:
        control.log.reads_down = True

    monkeypatch.setattr(control.writer, "_preload", no_preload)
    replies = await control.ask(disable("n1", "a"), disable("n2", "b"))
    assert told(replies) == ["UNAVAILABLE", "UNAVAILABLE"]
    monkeypatch.undo()
    control.log.reads_down = False
    assert told(await control.ask(disable("n1", "c"))) == ["accepted"]
    assert await control.log.last_position() == 3
    rows = await control.log.read(0, 10)
    assert [(row.stream, row.version) for row in rows] == [("node-n1", 1), ("node-n2", 1), ("node-n1", 2)]


async def test_a_repeat_in_a_failing_group_is_answered_once(control: Control) -> None:
    """`ask` asserts that nobody hears two outcomes: a durable message must not be acknowledged and refused."""
    await control.ask(enrol("n1"))
    control.log.faults.append("unavailable")
    replies = await control.ask(enrol("n1"), enrol("n2"), enrol("n2"))
    assert told(replies) == ["accepted", "UNAVAILABLE", "UNAVAILABLE"]


async def test_a_writer_that_was_superseded_stops(control: Control) -> None:
    await control.log.take_epoch("another")

    async def unheard(reply: Reply) -> None:
        raise AssertionError("nobody may hear an outcome")

    await control.writer.submit(Submission(enrol(), unheard))
    with pytest.raises(Superseded):
        await control.writer.run()
    assert await control.log.last_position() == 0


@pytest.mark.parametrize("fault", ["conflict", "lost ack", "unavailable"])
@pytest.mark.parametrize("first_id", [9, 9_000])  # ids below and above that of the deployment there was
async def test_names_stay_taken_when_a_group_is_taken_back(fault: str, first_id: int) -> None:
    """One group retires a deployment and gives its name away; the append fails, or its answer is lost."""
    story = Story()
    story.ids.tokens = 5_000
    retired = story.deployment()
    control = await Control.after(story)
    control.ids.tokens = first_id
    state = story.get(DeploymentState, f"deployment-{retired}")
    create = c.CreateDeployment(
        command_id="again", actor="ann", name=state.name, candidate_id=state.candidate_id,
        candidate_digest=state.candidate_digest, capability=state.capability, node_ids=["n1"],
    )  # fmt: skip
    control.log.faults.append(fault)
    await control.ask(c.RetireDeployment(command_id="retire", actor="ann", deployment_id=retired), create)
    await control.ask(disable("ghost"))  # a further step, which puts memory right again
    await control.assert_world_is_the_log()
    assert told(await control.ask(msgspec.structs.replace(create, command_id="third"))) == ["NAME_TAKEN"]


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
