"""What the control plane asks of itself: one outstanding of each, whatever the log does meanwhile."""

from __future__ import annotations

import pytest

from domain.folding.states import NodeState, WorkState
from schemas import commands as c
from services.clock import RandomIds
from services.control.own_commands import OwnCommands
from services.control.sessions import Sessions
from tests.unit.control.faulty import Control
from tests.unit.domain.story import Story, Terms

TICKS = 100


class Desk:
    """A control plane after a claimed probe, at a time when its session, its lease and a deadline are over."""

    def __init__(self, control: Control, work_id: str) -> None:
        self.control, self.work_id = control, work_id
        self.sessions = Sessions(control.folded.world.fleet, Terms(), control.clock, RandomIds())
        self.own = OwnCommands(control.writer)
        self.sessions.due()  # every session has a term from here
        control.clock.at_ms += 10_000_000

    async def tick(self, times: int = 1) -> list[bool]:
        return [await self.own.submit(command) for _ in range(times) for command in self.sessions.due()]

    async def settle(self) -> None:
        while self.control.writer.queued:
            await self.control.writer.step()


@pytest.fixture
async def desk() -> Desk:
    story = Story()
    work_id = story.probe()
    story.claim(work_id)
    story.probe()  # queued: its deadline is over as well
    control = await Control.after(story)
    control.clock.at_ms = story.world.now_ms
    return Desk(control, work_id)


async def test_while_the_writer_is_busy_each_waits_once(desk: Desk) -> None:
    taken = await desk.tick(TICKS)
    assert desk.control.writer.queued == sum(taken) == 3
    assert len(taken) == 3 * TICKS
    await desk.settle()
    assert isinstance(node := desk.control.folded.world.states["node-n1"], NodeState)
    assert node.session == "lost"


async def test_while_the_log_is_down_each_is_tried_and_none_piles_up(desk: Desk) -> None:
    desk.control.log.down = True
    await desk.control.ask(c.EnrolNode(command_id="e", actor="a", node_id="n9", credential_sha256="a" * 64))
    for _ in range(TICKS):  # memory is not what the log says, so nothing more is decided, and all of it stays due
        await desk.tick(5)
        assert desk.control.writer.queued == 3
        await desk.settle()
    desk.control.log.down = False
    await desk.tick()
    await desk.settle()
    assert await desk.tick() == []  # all of it is in the log, so nothing is due
    assert isinstance(work := desk.control.folded.world.states[f"work-{desk.work_id}"], WorkState)
    assert work.lease is None


async def test_what_an_append_failed_for_is_due_again_though_nobody_asks_for_anything(desk: Desk) -> None:
    """Memory was ahead of the log: as long as it stays so, a lost session looks lost and is never put into the log."""
    desk.control.log.faults.append("unavailable")
    assert len(await desk.tick()) == 3
    await desk.settle()
    assert await desk.tick() == []
    await desk.control.writer.step()
    assert len(await desk.tick()) == 2  # the session has a new term, as after a start
    desk.control.clock.at_ms += Terms().session_ms + 1
    await desk.tick()
    await desk.settle()
    rows = await desk.control.log.read(0, 10_000)
    assert [row.topic for row in rows if row.topic == "session.lost.v1"] == ["session.lost.v1"]


async def test_what_is_about_another_thing_or_of_another_kind_is_not_held_back(desk: Desk) -> None:
    for command in (
        c.PassDeadline(command_id="1", actor="control", work_id="a"),
        c.PassDeadline(command_id="2", actor="control", work_id="b"),
        c.ExpireLease(command_id="3", actor="control", work_id="a", attempt=1),
        c.LoseSession(command_id="4", actor="control", node_id="n1", generation="1", silent_ms=1),
        c.ReconcileInventory(command_id="5", actor="control", node_id="n1", generation="1", inventory=[]),
    ):
        assert await desk.own.submit(command)
        assert not await desk.own.submit(command)
    await desk.settle()  # refused, and so answered
    assert await desk.own.submit(c.PassDeadline(command_id="6", actor="control", work_id="a"))
