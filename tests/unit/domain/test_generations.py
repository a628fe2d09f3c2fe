"""Generations and sessions: what a new worker, a lost one and one that leaves mean for what the old one held."""

from __future__ import annotations

import pytest

from domain.deciding.outcomes import Accepted
from schemas import commands as c
from schemas import events as ev
from schemas import evidence as se
from schemas.codes import Code
from schemas.tokens import ATTEMPTS_MAX
from tests.unit.domain import statements as says
from tests.unit.domain.story import CREDENTIAL, Story, environment


def lose(story: Story, generation: str = "1") -> Accepted:
    return story.accept(c.LoseSession, node_id="n1", generation=generation, silent_ms=10_001)


def leave(story: Story, generation: str = "1") -> Accepted:
    return story.accept(c.LeaveWorker, node_id="n1", generation=generation, credential=CREDENTIAL)


def register(**fields: object) -> dict[str, object]:
    return {
        "node_id": "n1", "credential": CREDENTIAL, "boot_id": "boot", "environment": environment(),
        "capabilities": {}, "session_public_key": "key", "artifact_root": "/srv", "inventory": [], **fields,
    }  # fmt: skip


def test_each_worker_gets_the_next_generation_and_its_terms(story: Story) -> None:
    story.enrol()
    assert [story.start_worker() for _ in range(3)] == ["1", "2", "3"]
    node = story.node()
    assert (node.generation, node.session, sorted(node.session_keys)) == ("3", "alive", ["1", "2", "3"])
    result = story.accept(c.RegisterWorker, **register()).result
    assert result == {"generation": "4", "session_ms": 10_000, "beat_ms": 1_000, "lease_ms": 30_000}


def test_generations_are_compared_as_numbers(story: Story) -> None:
    story.enrol()
    generations = [story.start_worker() for _ in range(11)]
    assert generations[-2:] == ["10", "11"]


def test_who_may_not_register(story: Story) -> None:
    assert story.refuse(c.RegisterWorker, **register()).code is Code.UNKNOWN_STREAM
    story.enrol()
    wrong = register(credential="somebody else's credential")
    assert story.refuse(c.RegisterWorker, **wrong).code is Code.CREDENTIAL_REFUSED
    story.accept(c.DisableNode, node_id="n1")
    assert story.refuse(c.RegisterWorker, **register()).code is Code.NODE_DISABLED
    story.accept(c.EnableNode, node_id="n1")
    assert story.start_worker() == "1"


def test_one_outcome_ends_every_lease_and_loses_every_resident(story: Story) -> None:
    deployment_id = story.resident()
    artifact_id = story.verified_artifact()
    leased = story.work_for(c.VerifyArtifact, artifact_id=artifact_id, node_id="n1", location="models/mini")
    story.claim(leased)
    queued = story.work_for(c.VerifyArtifact, artifact_id=artifact_id, node_id="n1", location="models/mini")
    before = len(story.lines)
    story.start_worker()
    assert story.since(before) == ["WorkerRegistered", "LeaseEnded", "ResidencyChanged"]
    assert story.residency(deployment_id) == "lost"
    assert (story.work(leased).stage, story.work(leased).lease) == ("queued", None)
    assert story.work(queued).stage == "queued"
    ended = story.events(ev.LeaseEnded)[-1]
    assert (ended.cause, ended.again, ended.generation) == (Code.WORKER_LOST, True, "1")


def test_work_that_dies_with_every_generation_fails_in_the_end(story: Story) -> None:
    work_id = story.probe()
    for _ in range(ATTEMPTS_MAX):
        story.claim(work_id)
        story.start_worker()
    assert (story.work(work_id).stage, story.work(work_id).code) == ("failed", Code.WORK_ATTEMPTS_EXHAUSTED)


def test_late_evidence_of_an_older_generation_is_kept_and_changes_nothing(story: Story) -> None:
    work_id = story.probe()
    story.claim(work_id)
    story.start_worker()
    before = story.work(work_id)
    outcome = story.say(work_id, says.probed(story.fingerprint()))
    assert outcome.result == {"evidence": "rejected", "reason": "GENERATION_FENCED"}
    rejected = story.events(ev.EvidenceRejected)[0]
    assert (rejected.reason, rejected.generation) == (Code.GENERATION_FENCED, "1")
    assert "probed" in rejected.signed.payload
    after = story.work(work_id)
    assert (after.stage, after.lease, after.result) == (before.stage, before.lease, before.result)
    assert after.rejected_evidence == 1
    assert not story.events(ev.CandidateCreated)
    story.finish(work_id, says.probed(story.fingerprint()))  # the new generation does the work
    assert len(story.events(ev.CandidateCreated)) == 1


@pytest.mark.parametrize("end", [lose, leave])
def test_a_session_that_is_over_holds_nothing(story: Story, end: object) -> None:
    deployment_id = story.resident()
    other = story.job(deployment_id, "health")
    story.claim(other)
    before = len(story.lines)
    end(story)  # type: ignore[operator]
    assert story.since(before) == ["SessionLost", "LeaseEnded", "WorkFailed", "ResidencyChanged"]
    assert story.node().session == ("lost" if end is lose else "left")
    assert story.residency(deployment_id) == "lost"
    before = len(story.lines)
    end(story)  # type: ignore[operator]
    assert len(story.lines) == before
    refused = story.refuse(c.RequestJob, deployment_id=deployment_id, node_id="n1", verb="load")
    assert refused.code is Code.NODE_ABSENT
    story.start_worker()
    story.load(deployment_id)


def test_only_the_newest_generation_can_be_lost_or_leave(story: Story) -> None:
    story.enrol()
    story.start_worker()
    story.start_worker()
    before = len(story.lines)
    lose(story, "1")
    leave(story, "1")
    assert len(story.lines) == before
    wrong = {"node_id": "n1", "generation": "2", "credential": "somebody else's credential"}
    assert story.refuse(c.LeaveWorker, **wrong).code is Code.CREDENTIAL_REFUSED
    assert story.refuse(c.LeaveWorker, **{**wrong, "node_id": "ghost"}).code is Code.UNKNOWN_STREAM
    assert story.refuse(c.LoseSession, node_id="ghost", generation="1", silent_ms=1).code is Code.UNKNOWN_STREAM
    assert story.node().session == "alive"


def test_a_load_under_way_goes_on_with_the_next_generation(story: Story) -> None:
    deployment_id = story.deployment()
    work_id = story.job(deployment_id, "load")
    story.claim(work_id)
    story.start_worker()
    assert story.residency(deployment_id) == "loading"
    late = story.say(work_id, says.loaded(story.fingerprint()))
    assert late.result["reason"] == "GENERATION_FENCED"
    assert story.residency(deployment_id) == "loading"
    story.finish(work_id, says.loaded(story.fingerprint()))
    assert story.residency(deployment_id) == "resident"


@pytest.mark.parametrize("verb", ["health", "drain", "unload"])
@pytest.mark.parametrize("claimed", [False, True])
def test_steps_of_a_resident_end_with_the_process_that_held_it(story: Story, verb: str, claimed: bool) -> None:
    """An unload left over from a dead generation would unload what the next one loads."""
    deployment_id = story.resident()
    work_id = story.job(deployment_id, verb)
    if claimed:
        story.claim(work_id)
    story.start_worker()
    assert (story.work(work_id).stage, story.work(work_id).code) == ("failed", Code.WORKER_LOST)
    assert story.residency(deployment_id) == ("failed" if verb == "unload" else "lost")
    story.load(deployment_id)
    assert story.residency(deployment_id) == "resident"
    assert story.world.fleet.open_work == {}


def test_a_child_that_died_is_lost_by_the_word_of_its_owner_only(story: Story) -> None:
    deployment_id = story.resident()
    load_id = story.orders and list(story.orders)[-1]
    died = se.ResidentLost(deployment_id=deployment_id, code=Code.CHILD_DIED, message="signal 9", exit_code=-9)
    unknown = se.ResidentLost(deployment_id="nothing", code=Code.CHILD_DIED, message="signal 9")
    assert story.say(load_id, unknown).result["reason"] == "UNKNOWN_STREAM"
    assert story.say(load_id, died, generation="9").result["reason"] == "GENERATION_FENCED"
    assert story.residency(deployment_id) == "resident"
    assert story.say(load_id, died).result == {"evidence": "accepted"}
    assert story.residency(deployment_id) == "lost"
    assert story.say(load_id, died).result["reason"] == "RESIDENCY_CONFLICT"
    changed = story.events(ev.ResidencyChanged)[-1]
    assert changed.cause == "CHILD_DIED: signal 9"
    assert changed.signed is not None
    assert "resident_lost" in changed.signed.payload  # kept whole, for whoever checks it years later
    story.load(deployment_id)


@pytest.mark.parametrize(
    ("verb", "answer", "left"), [("drain", says.drained(), "lost"), ("unload", says.unloaded(), "absent")]
)
def test_a_load_waits_for_older_steps_of_a_child_that_died(
    story: Story, verb: str, answer: se.Statement, left: str
) -> None:
    """Else the older step, claimed late, would reach what the load has just brought."""
    deployment_id = story.resident()
    load_id = list(story.orders)[-1]
    older = story.job(deployment_id, verb)
    died = se.ResidentLost(deployment_id=deployment_id, code=Code.CHILD_DIED, message="signal 9")
    story.say(load_id, died)
    assert story.residency(deployment_id) == "lost"
    refused = story.refuse(c.RequestJob, deployment_id=deployment_id, node_id="n1", verb="load")
    assert refused.code is Code.RESIDENCY_CONFLICT
    story.finish(older, answer)
    assert story.residency(deployment_id) == left
    story.load(deployment_id)
