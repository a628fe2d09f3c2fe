"""Settling: what would be stale is never appended, and a decision that disagrees with the fold is a defect."""

from __future__ import annotations

import pytest

from domain.deciding.outcomes import Accepted, Recorded
from domain.deciding.settle import settle
from domain.deciding.world import NotLoaded
from schemas import events as ev
from tests.unit.domain.story import Story

BY_HAND = {"at_ms": 1_000_000, "command_id": "by-hand", "actor": "nobody"}
ENABLED = Recorded("node-n1", ev.NodeEnabled(node_id="n1", **BY_HAND))
LOST = Recorded("node-n1", ev.SessionLost(node_id="n1", generation="7", cause="left", silent_ms=0, **BY_HAND))


def test_a_consequence_that_does_not_apply_is_left_out(story: Story) -> None:
    story.enrol()
    changes = settle(Accepted([ENABLED, LOST, ENABLED]), story.world)
    assert [(change.version, type(change.event)) for change in changes] == [(2, ev.NodeEnabled), (3, ev.NodeEnabled)]
    assert changes[1].before == changes[0].after
    assert story.world.versions["node-n1"] == 1  # nothing was enacted


def test_a_first_event_that_does_not_count_is_a_defect(story: Story) -> None:
    story.enrol()
    with pytest.raises(RuntimeError, match="SessionLost on node-n1 would not count: GENERATION_FENCED"):
        settle(Accepted([LOST, ENABLED]), story.world)


def test_a_stream_that_is_not_in_memory_is_asked_for(story: Story) -> None:
    with pytest.raises(NotLoaded, match="node-n1"):
        settle(Accepted([ENABLED]), story.world)
