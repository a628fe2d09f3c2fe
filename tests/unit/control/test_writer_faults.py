"""The writer when the log fails: memory never runs ahead of the log, and each sender hears one outcome.

Appends fail before or after they land, reads fail in the middle of a group, others write in between.
"""

from __future__ import annotations

import msgspec
import pytest

from domain.folding.states import DeploymentState
from schemas import commands as c
from schemas.codes import Code
from schemas.replies import Reply
from services.control import writer as writer_module
from services.control.submission import Submission
from services.eventlog.port import NewEvent, Superseded
from tests.unit.control.asking import disable, enrol, told
from tests.unit.control.faulty import Control
from tests.unit.domain.story import Story


@pytest.fixture
async def control() -> Control:
    return await Control.start()


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


async def test_what_was_folded_ahead_is_taken_back_although_nobody_asks_for_anything(control: Control) -> None:
    """The fleet would go on to be judged by what never happened: here, by a node that was not disabled."""
    await control.ask(enrol())
    control.log.faults.append("unavailable")
    assert told(await control.ask(disable())) == ["UNAVAILABLE"]
    assert not control.folded.world.fleet.nodes["n1"].enabled
    control.log.reads_down = True
    await control.writer.step()  # and the log cannot be read yet
    control.log.reads_down = False
    await control.writer.step()
    assert control.folded.world.fleet.nodes["n1"].enabled
    await control.assert_world_is_the_log()


async def test_a_log_that_fails_in_the_middle_of_a_group_takes_the_whole_group_back(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command is decided and folded ahead; then reading for the second one fails."""
    await control.ask(enrol("n1"), enrol("n2"))
    del control.folded.world.states["node-n2"]  # as if trimmed
    control.folded.world.complete = False

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
