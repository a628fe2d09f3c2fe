"""The writer's memory: the same whether it was folded at once, in pieces, or had to forget on the way."""

from __future__ import annotations

import pytest

from schemas import commands as c
from services.control import folded as folded_module
from services.control.folded import Folded
from tests.unit.control.faulty import Control, log_of
from tests.unit.domain.invariants import facts
from tests.unit.domain.story import CountedIds, Story, Terms


@pytest.fixture
def story() -> Story:
    made = Story()
    made.resident()
    made.start_worker()
    return made


@pytest.mark.parametrize(("rows", "streams"), [(1, 3), (2, 1), (3, 2), (5_000, 2), (7, 100)])
async def test_a_replay_that_forgets_on_the_way_comes_to_the_same(
    story: Story, monkeypatch: pytest.MonkeyPatch, rows: int, streams: int
) -> None:
    """Dropped streams are folded again from their beginning, not taken for empty."""
    monkeypatch.setattr(folded_module, "REPLAY_ROWS", rows)
    monkeypatch.setattr(folded_module, "STREAMS_MAX", streams)
    folded = Folded(await log_of(story.lines), CountedIds(), Terms())
    assert await folded.replay() == len(story.lines)
    assert (folded.position, folded.stale) == (len(story.lines), 0)
    assert len(folded.world.states) <= streams
    assert facts(folded.world.fleet) == facts(story.world.fleet)
    for stream, state in folded.world.states.items():
        assert state == story.world.states[stream]
        assert folded.world.versions[stream] == story.world.versions[stream]
    everything = [line.stream for line in story.lines]
    await folded.load(folded.missing(everything))
    assert folded.world.states == {s: state for s, state in story.world.states.items() if state is not None}
    assert facts(folded.world.fleet) == facts(story.world.fleet)


async def test_a_writer_decides_rightly_with_room_for_two_streams(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folded_module, "STREAMS_MAX", 2)
    control = await Control.after(story)
    deployment_id = next(iter(story.world.fleet.deployment_named.values()))
    load = c.RequestJob(command_id="load", actor="ann", deployment_id=deployment_id, node_id="n1", verb="load")
    (reply,) = await control.ask(load)
    claim = c.ClaimLease(command_id="claim", actor="n1", work_id=reply.result["work_id"], node_id="n1", generation="2")
    (reply,) = await control.ask(claim)
    assert reply.result["profile"]["adapter"] == "sentence_transformers"
    (reply,) = await control.ask(c.DisableNode(command_id="disable", actor="ann", node_id="n1"))
    assert reply.outcome == "accepted"
    assert len(control.folded.world.states) <= 2
    fresh = Folded(control.log, CountedIds(), Terms())
    monkeypatch.undo()
    await fresh.replay()
    assert facts(fresh.world.fleet) == facts(control.folded.world.fleet)
    assert fresh.stale == 0
