"""What a worker says it holds, against the log: an exact match stays, a missing one is lost."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from domain.inventory import agrees, expected, unwanted
from schemas import commands as c
from schemas.codes import Code
from schemas.live import InventoryEntry, inventory_digest
from tests.unit.domain import statements as says
from tests.unit.domain.story import Story


def held(story: Story) -> list[InventoryEntry]:
    return expected(story.world.fleet.nodes["n1"], story.world.fleet)


def say(story: Story, inventory: list[InventoryEntry], generation: str = "1") -> list[str]:
    """Reconcile with this; the topics of what it led to."""
    accepted = story.accept(c.ReconcileInventory, node_id="n1", generation=generation, inventory=inventory)
    return [type(recorded.event).__name__ for recorded in accepted.events]


def test_an_exact_match_is_simply_still_there() -> None:
    story = Story()
    deployment_id = story.resident()
    (entry,) = held(story)
    assert (entry.deployment_id, entry.generation, entry.state) == (deployment_id, "1", "resident")
    assert agrees(story.world.fleet.nodes["n1"], story.world.fleet, inventory_digest([entry]))
    assert say(story, [entry]) == []
    assert story.residency(deployment_id) == "resident"


def test_what_the_worker_does_not_hold_is_lost_and_can_be_loaded_again() -> None:
    story = Story()
    deployment_id = story.resident()
    assert not agrees(story.world.fleet.nodes["n1"], story.world.fleet, inventory_digest([]))
    assert say(story, []) == ["ResidencyChanged"]
    assert story.residency(deployment_id) == "lost"
    story.load(deployment_id)


@pytest.mark.parametrize("field", ["artifact_id", "profile_id", "fingerprint", "generation"])
def test_a_match_that_is_not_exact_is_none(field: str) -> None:
    story = Story()
    deployment_id = story.resident()
    (entry,) = held(story)
    other = replace(entry, **{field: "2" if field == "generation" else "f" * 64})
    assert say(story, [other]) == ["ResidencyChanged"]
    assert story.residency(deployment_id) == "lost"


def test_work_that_is_under_way_explains_a_difference() -> None:
    story = Story()
    deployment_id = story.resident()
    (entry,) = held(story)
    story.job(deployment_id, "health")
    assert say(story, []) == []
    assert unwanted(story.world.fleet.nodes["n1"], story.world.fleet, [entry]) == []


def test_the_word_of_an_older_generation_changes_nothing() -> None:
    story = Story()
    deployment_id = story.resident()
    story.start_worker()
    (lost,) = [story.residency(deployment_id)]
    assert say(story, [], generation="1") == []
    assert story.residency(deployment_id) == lost == "lost"


def test_what_the_log_does_not_know_of_is_unwanted() -> None:
    story = Story()
    story.resident()
    (entry,) = held(story)
    stranger = replace(entry, deployment_id="e" * 32)
    assert unwanted(story.world.fleet.nodes["n1"], story.world.fleet, [entry, stranger]) == ["e" * 32]


def test_a_node_that_does_not_exist_has_no_inventory() -> None:
    story = Story()
    refused = story.refuse(c.ReconcileInventory, node_id="ghost", generation="1", inventory=[])
    assert refused.code is Code.UNKNOWN_STREAM


@pytest.mark.parametrize(("logged", "said"), [("draining", "resident"), ("resident", "draining")])
def test_the_worker_knows_whether_it_drains(story: Story, logged: str, said: Any) -> None:
    """A drain that failed and was never heard of, or one that was and whose word got lost."""
    deployment_id = story.resident()
    if logged == "draining":
        story.finish(story.job(deployment_id, "drain"), says.failed(Code.LEASE_EXPIRED))
    (entry,) = held(story)
    assert entry.state == logged
    assert say(story, [replace(entry, state=said)]) == ["ResidencyChanged"]
    assert story.residency(deployment_id) == said
    assert say(story, [replace(entry, state=said)]) == []


def test_a_process_that_nobody_can_end_is_neither_lost_nor_serving() -> None:
    story = Story()
    deployment_id = story.resident()
    (entry,) = held(story)
    assert say(story, [replace(entry, state="unloading")]) == []
    assert story.residency(deployment_id) == "resident"
