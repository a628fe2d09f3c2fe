"""Crash loops: what opens a circuit, what it refuses, and what closes it."""

from __future__ import annotations

from typing import Any

import pytest

from domain.circuits import BACKOFF_MS_MAX, BACKOFF_MS_MIN, ENDS_MAX, WINDOW_MS, backoff_ms
from domain.deciding.outcomes import Accepted, Rejected
from domain.folding.states import Circuit, DeploymentState
from schemas import commands as c
from schemas import events as ev
from schemas import evidence as se
from schemas.codes import Code
from tests.unit.domain import statements as says
from tests.unit.domain.story import Story, audited

LOADS_THAT_CRASH = (Code.CHILD_DIED, Code.OUT_OF_MEMORY, Code.LOAD_FAILED, Code.HEALTH_FAILED, Code.LOAD_TIMEOUT)


def fail_load(story: Story, deployment_id: str, code: Code = Code.CHILD_DIED) -> None:
    story.finish(story.job(deployment_id, "load"), says.failed(code, "it ended"))


def die(story: Story, deployment_id: str, code: Code = Code.CHILD_DIED) -> None:
    """A resident's process ends unasked."""
    load_id = story.load(deployment_id)
    story.wait(1_000)
    lost = se.ResidentLost(deployment_id=deployment_id, code=code, message="the model process was ended by SIGSEGV")
    assert story.say(load_id, lost).result == {"evidence": "accepted"}


def ask(deployment_id: str) -> dict[str, Any]:
    return {"deployment_id": deployment_id, "node_id": "n1", "verb": "load"}


def close(story: Story, deployment_id: str) -> Accepted:
    return story.accept(c.CloseCircuit, deployment_id=deployment_id, node_id="n1")


def circuit(story: Story, deployment_id: str) -> Circuit:
    return story.get(DeploymentState, f"deployment-{deployment_id}").circuits.get("n1", Circuit())


def refused(story: Story, deployment_id: str) -> Rejected:
    outcome = story.refuse(c.RequestJob, **ask(deployment_id))
    assert outcome.code is Code.RUNTIME_CRASH_LOOP
    return outcome


def looping(story: Story) -> str:
    """A deployment whose circuit has just opened for the first time."""
    deployment_id = story.deployment()
    for _ in range(ENDS_MAX):
        fail_load(story, deployment_id)
    return deployment_id


@pytest.mark.parametrize("code", LOADS_THAT_CRASH)
def test_loads_that_fail_again_and_again_open_it(story: Story, code: Code) -> None:
    deployment_id = story.deployment()
    for _ in range(ENDS_MAX - 1):
        fail_load(story, deployment_id, code)
    assert circuit(story, deployment_id).until_ms is None
    fail_load(story, deployment_id, code)
    (opened,) = story.events(ev.CircuitOpened)
    assert isinstance(opened, ev.CircuitOpened)
    assert (opened.cause, opened.ends, opened.openings) == (code, ENDS_MAX, 1)
    assert opened.until_ms == story.world.now_ms + BACKOFF_MS_MIN
    refused(story, deployment_id)


@pytest.mark.parametrize("code", [Code.CHILD_DIED, Code.OUT_OF_MEMORY, Code.DEADLINE_EXCEEDED])
def test_residents_that_die_open_it_though_each_load_succeeded(story: Story, code: Code) -> None:
    deployment_id = story.deployment()
    for _ in range(ENDS_MAX):
        die(story, deployment_id, code)
    assert story.residency(deployment_id) == "lost"
    refused(story, deployment_id)


def test_the_refusal_names_the_cause_and_when_to_try_again(story: Story) -> None:
    deployment_id = looping(story)
    story.wait(500)
    outcome = refused(story, deployment_id)
    assert "ended by itself 3 times on node n1, last with CHILD_DIED: it ended" in outcome.message
    assert "in 60 s" in outcome.message
    until_ms = story.world.now_ms - 500 + BACKOFF_MS_MIN
    assert outcome.detail == {"cause": "CHILD_DIED", "until_ms": str(until_ms), "openings": "1"}


def test_an_unhealthy_load_by_the_control_planes_judgement_counts(story: Story) -> None:
    deployment_id = story.deployment()
    for _ in range(ENDS_MAX):
        story.finish(
            story.job(deployment_id, "load"), says.loaded(story.fingerprint(), health=says.health(model=False))
        )
    assert circuit(story, deployment_id).cause is Code.HEALTH_FAILED
    refused(story, deployment_id)


def test_ends_far_apart_open_nothing_and_are_forgotten(story: Story) -> None:
    deployment_id = story.deployment()
    for _ in range(3 * ENDS_MAX):
        fail_load(story, deployment_id)
        story.wait(WINDOW_MS // (ENDS_MAX - 1))
    assert story.events(ev.CircuitOpened) == []
    assert len(circuit(story, deployment_id).ends) < ENDS_MAX


def test_what_says_nothing_about_the_model_does_not_count(story: Story) -> None:
    deployment_id = story.deployment()
    for _ in range(2 * ENDS_MAX):
        fail_load(story, deployment_id, Code.ARTIFACT_DIGEST_MISMATCH)
        story.accept(c.CancelWork, work_id=story.job(deployment_id, "load"))
        load_id = story.load(deployment_id)
        stopped = se.ResidentLost(deployment_id=deployment_id, code=Code.WORKER_LOST, message="stopped in good order")
        story.say(load_id, stopped)
        story.load(deployment_id)
        story.start_worker()
    assert story.events(ev.CircuitOpened) == []
    assert circuit(story, deployment_id) == Circuit()


def test_when_its_time_has_passed_one_load_may_try(story: Story) -> None:
    deployment_id = looping(story)
    story.wait(BACKOFF_MS_MIN - 1)
    refused(story, deployment_id)
    story.wait(1)
    work_id = story.job(deployment_id, "load")
    assert story.accept(c.RequestJob, **ask(deployment_id)).result["joined"]
    story.finish(work_id, says.loaded(story.fingerprint()))
    (closed,) = story.events(ev.CircuitClosed)
    assert isinstance(closed, ev.CircuitClosed)
    assert closed.by == "load"
    assert story.residency(deployment_id) == "resident"


def test_a_half_open_failure_opens_it_for_twice_as_long_up_to_a_bound(story: Story) -> None:
    deployment_id = looping(story)
    spans = []
    for _ in range(10):
        until_ms = circuit(story, deployment_id).until_ms
        assert until_ms is not None
        spans.append(until_ms - story.world.now_ms)
        story.wait(spans[-1])
        fail_load(story, deployment_id, Code.OUT_OF_MEMORY)
    assert spans[:3] == [BACKOFF_MS_MIN, 2 * BACKOFF_MS_MIN, 4 * BACKOFF_MS_MIN]
    assert spans[-1] == BACKOFF_MS_MAX == backoff_ms(10_000)
    assert len(circuit(story, deployment_id).ends) <= ENDS_MAX


def test_a_half_open_load_that_never_ran_leaves_it_half_open(story: Story) -> None:
    deployment_id = looping(story)
    story.wait(BACKOFF_MS_MIN)
    story.accept(c.CancelWork, work_id=story.job(deployment_id, "load"))
    assert len(story.events(ev.CircuitOpened)) == 1
    assert story.events(ev.CircuitClosed) == []
    story.load(deployment_id)
    assert len(story.events(ev.CircuitClosed)) == 1


def test_a_model_that_loads_and_dies_again_is_not_begun_anew(story: Story) -> None:
    """Closing by a load keeps what was, so the next death within the window opens it for longer."""
    deployment_id = looping(story)
    story.wait(BACKOFF_MS_MIN)
    die(story, deployment_id)
    assert circuit(story, deployment_id).openings == 2
    refused(story, deployment_id)


def test_a_circuit_that_stayed_closed_begins_again(story: Story) -> None:
    deployment_id = looping(story)
    story.wait(BACKOFF_MS_MIN)
    load_id = story.load(deployment_id)
    story.wait(WINDOW_MS)
    story.say(load_id, se.ResidentLost(deployment_id=deployment_id, code=Code.CHILD_DIED, message="signal 9"))
    for _ in range(ENDS_MAX - 1):
        assert circuit(story, deployment_id).until_ms is None
        fail_load(story, deployment_id)
    assert circuit(story, deployment_id).openings == 1


def test_a_person_closes_it_and_nothing_is_remembered(story: Story) -> None:
    deployment_id = looping(story)
    close(story, deployment_id)
    assert circuit(story, deployment_id) == Circuit()
    before = len(story.lines)
    close(story, deployment_id)
    assert len(story.lines) == before
    for _ in range(ENDS_MAX - 1):
        fail_load(story, deployment_id)
    story.load(deployment_id)


def test_who_may_not_close(story: Story) -> None:
    deployment_id = looping(story)
    named = {"deployment_id": deployment_id, "node_id": "n2"}
    assert story.refuse(c.CloseCircuit, **named).code is Code.RESIDENCY_CONFLICT
    assert story.refuse(c.CloseCircuit, deployment_id="ghost", node_id="n1").code is Code.UNKNOWN_STREAM
    story.accept(c.RetireDeployment, deployment_id=deployment_id)
    assert story.refuse(c.CloseCircuit, **{**named, "node_id": "n1"}).code is Code.RESIDENCY_CONFLICT


def test_another_deployment_of_the_same_candidate_has_its_own(story: Story) -> None:
    candidate = story.candidate()
    story.approve(candidate)
    one, two = story.deploy(candidate, "one"), story.deploy(candidate, "two")
    for _ in range(ENDS_MAX):
        fail_load(story, one)
    refused(story, one)
    story.load(two)


def test_forged_circuits_are_found(story: Story) -> None:
    deployment_id = looping(story)
    by_hand: dict[str, Any] = {
        "at_ms": story.world.now_ms, "command_id": "by-hand", "actor": "nobody", "deployment_id": deployment_id,
        "node_id": "n1",
    }  # fmt: skip
    longer = ev.CircuitOpened(cause=Code.CHILD_DIED, message="", ends=3, openings=2, until_ms=2**40, **by_hand)
    closed = ev.CircuitClosed(by="load", **by_hand)
    elsewhere = ev.CircuitClosed(**{**by_hand, "node_id": "n9"}, by="person")
    loading = ev.ResidencyChanged(
        state="loading", generation="0", work_id=list(story.orders)[-1], cause="by hand", **by_hand
    )
    for event, what in (
        (longer, "a circuit opened for another time than it may"),
        (closed, "a circuit closed without a successful load"),
        (loading, "loaded while its circuit was open"),
    ):
        auditor = audited(story.tampered(f"deployment-{deployment_id}", event))
        assert what in [finding.what for finding in auditor.violations]
    assert audited(story.tampered(f"deployment-{deployment_id}", elsewhere)).stale_count == 1
