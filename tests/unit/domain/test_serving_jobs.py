"""ServingJobs: load, health, drain and unload in every order, and what a second request for the same gets."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from domain.folding.states import DeploymentState
from schemas import commands as c
from schemas import evidence as se
from schemas.codes import Code
from schemas.tokens import RESIDENTS_PER_NODE_MAX
from tests.unit.domain import statements as says
from tests.unit.domain.story import Story


def ask(deployment_id: str, verb: str, node_id: str = "n1") -> dict[str, object]:
    return {"deployment_id": deployment_id, "node_id": node_id, "verb": verb}


def refused(story: Story, deployment_id: str, verb: str, node_id: str = "n1") -> Code:
    return story.refuse(c.RequestJob, **ask(deployment_id, verb, node_id)).code


def test_a_second_load_joins_the_one_that_runs(story: Story) -> None:
    deployment_id = story.deployment()
    work_id = story.job(deployment_id, "load")
    before = len(story.lines)
    for claim in (False, True):
        if claim:
            story.claim(work_id)
            before = len(story.lines)
        joined = story.accept(c.RequestJob, **ask(deployment_id, "load")).result
        assert joined == {"work_id": work_id, "state": "loading", "joined": True}
        assert len(story.lines) == before
    story.say(work_id, says.loaded(story.fingerprint()))
    assert story.accept(c.RequestJob, **ask(deployment_id, "load")).result == {"work_id": None, "state": "resident"}


def test_who_may_not_ask(story: Story) -> None:
    assert refused(story, "nothing", "load") is Code.UNKNOWN_STREAM
    deployment_id = story.deployment()
    assert refused(story, deployment_id, "load", "n2") is Code.RESIDENCY_CONFLICT
    story.start_worker(worker="0.2.0")
    assert refused(story, deployment_id, "load") is Code.ENVIRONMENT_CHANGED


def test_a_node_holds_a_bounded_number_of_deployments(story: Story) -> None:
    candidate = story.candidate()
    story.approve(candidate)
    for number in range(RESIDENTS_PER_NODE_MAX):
        story.job(story.deploy(candidate, f"name{number}"), "load")
    assert refused(story, story.deploy(candidate, "one-more"), "load") is Code.NODE_FULL


@pytest.mark.parametrize(
    ("state", "possible"),
    [("absent", {"load"}), ("loading", {"load"}), ("resident", {"health", "drain", "unload"}),
     ("draining", {"health", "unload"}), ("unloading", {"unload"}), ("lost", {"load"}), ("failed", {"load", "unload"})],
)  # fmt: skip
def test_each_state_has_its_steps(story: Story, state: str, possible: set[str]) -> None:
    """Among steps that would open work or join it; asking for what already holds is accepted with no work."""
    deployment_id = in_state(story, state)
    assert story.residency(deployment_id) == state
    for verb in ("load", "health", "drain", "unload"):
        outcome = story.do(c.RequestJob, **ask(deployment_id, verb))
        result = getattr(outcome, "result", None)
        assert (result is not None and result.get("work_id") is not None) == (verb in possible), verb
        if verb in possible:
            return_to = story.accept(c.CancelWork, work_id=result["work_id"])
            assert return_to
            break


def in_state(story: Story, state: str) -> str:
    deployment_id = story.deployment()
    if state == "absent":
        return deployment_id
    work_id = story.job(deployment_id, "load")
    if state == "loading":
        return deployment_id
    story.claim(work_id)
    if state == "failed":
        story.say(work_id, says.failed())
        return deployment_id
    story.say(work_id, says.loaded(story.fingerprint()))
    if state == "lost":
        story.start_worker()
    if state == "draining":
        story.finish(story.job(deployment_id, "drain"), says.drained())
    if state == "unloading":
        story.job(deployment_id, "unload")
    return deployment_id


def test_drain_then_unload(story: Story) -> None:
    deployment_id = story.resident()
    drain = story.job(deployment_id, "drain")
    assert story.residency(deployment_id) == "draining"
    assert story.accept(c.RequestJob, **ask(deployment_id, "drain")).result["joined"]
    story.finish(drain, says.drained(2))
    assert story.accept(c.RequestJob, **ask(deployment_id, "drain")).result == {"work_id": None, "state": "draining"}
    assert refused(story, deployment_id, "load") is Code.RESIDENCY_CONFLICT
    story.finish(story.job(deployment_id, "unload"), says.unloaded())
    assert story.residency(deployment_id) == "absent"
    assert story.accept(c.RequestJob, **ask(deployment_id, "unload")).result == {"work_id": None, "state": "absent"}


def test_an_unload_need_not_wait_for_the_drain(story: Story) -> None:
    deployment_id = story.resident()
    drain, unload = story.job(deployment_id, "drain"), story.job(deployment_id, "unload")
    assert story.residency(deployment_id) == "unloading"
    story.finish(drain, says.drained())
    assert story.residency(deployment_id) == "unloading"  # the drain's word does not undo the unload
    story.finish(unload, says.unloaded())
    assert story.residency(deployment_id) == "absent"
    story.load(deployment_id)


def test_a_failed_drain_leaves_it_draining_and_a_failed_unload_says_so(story: Story) -> None:
    deployment_id = story.resident()
    story.finish(story.job(deployment_id, "drain"), says.failed(Code.DEADLINE_EXCEEDED))
    assert story.residency(deployment_id) == "draining"
    story.finish(story.job(deployment_id, "unload"), says.failed(Code.RECLAIM_INCOMPLETE))
    assert story.residency(deployment_id) == "failed"
    story.finish(story.job(deployment_id, "unload"), says.unloaded())
    assert story.residency(deployment_id) == "absent"


def test_a_drain_that_nobody_began_leaves_it_in_service(story: Story) -> None:
    deployment_id = story.resident()
    story.accept(c.CancelWork, work_id=story.job(deployment_id, "drain"))
    assert story.residency(deployment_id) == "resident"
    late = story.job(deployment_id, "drain")
    story.world.now_ms = story.work(late).deadline_ms + 1
    story.accept(c.PassDeadline, work_id=late)
    assert story.work(late).code is Code.WORK_DEADLINE
    assert story.residency(deployment_id) == "resident"
    story.finish(story.job(deployment_id, "drain"), says.drained())
    assert story.residency(deployment_id) == "draining"


def test_a_drain_that_nobody_began_takes_no_unload_back(story: Story) -> None:
    deployment_id = story.resident()
    drain = story.job(deployment_id, "drain")
    story.job(deployment_id, "unload")
    story.accept(c.CancelWork, work_id=drain)
    assert story.residency(deployment_id) == "unloading"


def test_an_unload_that_finds_nothing_is_the_workers_word_that_nothing_is_there(story: Story) -> None:
    """Found by a simulated story: a failed load left `failed`, and no unload could ever end that."""
    deployment_id = story.resident()
    story.finish(story.job(deployment_id, "unload"), says.failed(Code.RECLAIM_INCOMPLETE))
    assert story.residency(deployment_id) == "failed"
    story.finish(story.job(deployment_id, "unload"), says.failed(Code.NOT_RESIDENT))
    assert story.residency(deployment_id) == "absent"
    story.load(deployment_id)


def test_memory_that_was_not_given_back_is_told(story: Story) -> None:
    deployment_id = story.resident()
    story.finish(story.job(deployment_id, "unload"), says.unloaded(reclaim_complete=False))
    state = story.world.states[f"deployment-{deployment_id}"]
    assert (state.residencies["n1"].state, state.residencies["n1"].cause) == ("absent", "RECLAIM_INCOMPLETE")


def test_an_unload_whose_reclaim_was_not_measured_says_why(story: Story) -> None:
    deployment_id = story.resident()
    unmeasured = replace(says.memory(reclaim_complete=False), reclaim_reason="not measured: NVML: Driver Not Loaded")
    work_id = story.job(deployment_id, "unload")
    story.finish(work_id, replace(says.unloaded(), memory=unmeasured))
    state = story.get(DeploymentState, f"deployment-{deployment_id}")
    cause = "RECLAIM_INCOMPLETE: not measured: NVML: Driver Not Loaded"
    assert (state.residencies["n1"].state, state.residencies["n1"].cause) == ("absent", cause)
    assert story.work(work_id).stage == "completed"


def test_health_checks_do_not_join_and_change_no_residency(story: Story) -> None:
    deployment_id = story.resident()
    first, second = story.job(deployment_id, "health"), story.job(deployment_id, "health")
    assert first != second
    for work_id in (first, second):
        story.finish(work_id, se.HealthChecked(says.health(), 7))
    assert story.residency(deployment_id) == "resident"


def test_deployments_on_one_node_do_not_touch_each_other(story: Story) -> None:
    candidate = story.candidate()
    story.approve(candidate)
    one, two = story.deploy(candidate, "one"), story.deploy(candidate, "two")
    story.load(one)
    story.load(two)
    story.finish(story.job(one, "unload"), says.failed())
    assert (story.residency(one), story.residency(two)) == ("failed", "resident")
