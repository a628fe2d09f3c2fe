"""Leases of work: who may claim, renew and release, and what follows when a lease ends without a result."""

from __future__ import annotations

import msgspec
import pytest

from domain.folding.states import DeploymentState
from schemas import commands as c
from schemas import events as ev
from schemas.codes import Code
from schemas.tokens import ATTEMPTS_MAX
from schemas.work import WorkOrder
from tests.unit.domain import statements as says
from tests.unit.domain.story import FILES, PROFILE, Story

LEASE_MS = 30_000


@pytest.fixture
def work_id(story: Story) -> str:
    """Queued `verify` work on a node with a live worker."""
    story.enrol()
    story.start_worker()
    artifact_id = story.register_artifact()
    return story.work_for(c.VerifyArtifact, artifact_id=artifact_id, node_id="n1", location="models/mini")


def claim_refused(story: Story, work_id: str, node_id: str = "n1", generation: str = "1") -> Code:
    return story.refuse(c.ClaimLease, work_id=work_id, node_id=node_id, generation=generation).code


def holder(order: WorkOrder, **fields: object) -> dict[str, object]:
    return {
        "work_id": order.work_id, "generation": order.generation, "attempt": order.attempt, "token": order.token,
        **fields,
    }  # fmt: skip


# --- claim --------------------------------------------------------------------------------------------------


def test_a_claim_gives_everything_the_work_needs(story: Story, work_id: str) -> None:
    order = story.claim(work_id)
    assert (order.attempt, order.generation, order.lease_ms) == (1, "1", LEASE_MS)
    assert order.until_ms == story.world.now_ms + LEASE_MS
    assert (order.location, order.files) == ("models/mini", FILES)
    work = story.work(work_id)
    assert work.stage == "preparing"
    assert work.lease is not None
    assert work.deadline_ms == order.deadline_ms


def test_the_log_has_the_tokens_hash_and_never_the_token(story: Story, work_id: str) -> None:
    order = story.claim(work_id)
    log = b"".join(msgspec.json.encode(line.event) for line in story.lines)
    assert order.token.encode() not in log
    assert ev.LeaseGranted in {type(line.event) for line in story.lines}


def test_a_load_order_has_files_and_profile_and_the_others_need_no_files(story: Story) -> None:
    deployment_id = story.deployment()
    load = story.claim(story.job(deployment_id, "load"))
    assert (load.files, load.profile, load.location) == (FILES, PROFILE, "models/mini")
    story.say(load.work_id, says.loaded(story.fingerprint()))
    unload = story.claim(story.job(deployment_id, "unload"))
    assert (unload.files, unload.profile, unload.location) == ([], PROFILE, None)


def test_who_may_not_claim(story: Story, work_id: str) -> None:
    assert claim_refused(story, "nothing") is Code.UNKNOWN_STREAM
    assert claim_refused(story, work_id, node_id="ghost") is Code.UNKNOWN_STREAM
    assert claim_refused(story, work_id, generation="2") is Code.GENERATION_FENCED
    assert claim_refused(story, work_id, generation="0") is Code.GENERATION_FENCED
    story.enrol("n2")
    story.start_worker("n2")
    assert claim_refused(story, work_id, node_id="n2") is Code.WORK_NOT_YOURS
    story.finish(work_id, says.verified())
    assert claim_refused(story, work_id) is Code.WORK_ENDED


def test_nobody_claims_without_a_live_session(story: Story, work_id: str) -> None:
    story.accept(c.LoseSession, node_id="n1", generation="1", silent_ms=10_001)
    assert claim_refused(story, work_id) is Code.GENERATION_FENCED


def test_the_same_generation_that_claims_again_gets_a_new_attempt(story: Story, work_id: str) -> None:
    first = story.claim(work_id)
    before = len(story.lines)
    second = story.claim(work_id)
    assert story.since(before) == ["LeaseEnded", "LeaseGranted"]
    assert (second.attempt, second.token != first.token) == (2, True)
    rejected = story.say(work_id, says.verified(), attempt=1)
    assert rejected.result["reason"] == "LEASE_ENDED"
    assert story.refuse(c.RenewLease, **holder(first)).code is Code.LEASE_ENDED
    assert story.say(work_id, says.verified()).result["evidence"] == "accepted"


def test_what_was_to_stop_is_not_granted_anew_to_a_holder_that_never_heard_of_its_lease(story: Story) -> None:
    """Here because its approval was revoked: nothing is loaded under it, however the claim's answer got lost."""
    deployment_id = story.deployment()
    candidate_id = story.get(DeploymentState, f"deployment-{deployment_id}").candidate_id
    load = story.job(deployment_id, "load")
    story.claim(load)
    story.accept(c.RevokeApproval, candidate_id=candidate_id)
    before = len(story.lines)
    again = story.ask_for(load)
    assert again.result["refused"] == "WORK_CANCELLED"
    assert again.secret == {}
    assert story.since(before) == ["LeaseEnded", "WorkCancelled", "ResidencyChanged"]
    assert story.work(load).stage == "cancelled"


def test_claiming_again_uses_up_attempts(story: Story, work_id: str) -> None:
    for _ in range(ATTEMPTS_MAX):
        story.claim(work_id)
    assert claim_refused(story, work_id) is Code.WORK_ATTEMPTS_EXHAUSTED
    assert story.work(work_id).lease is not None


# --- renew --------------------------------------------------------------------------------------------------


def test_a_renewal_counts_after_half_the_term_and_until_its_end(story: Story, work_id: str) -> None:
    order = story.claim(work_id)
    story.wait(LEASE_MS // 2 - 1)
    assert story.refuse(c.RenewLease, **holder(order)).code is Code.LEASE_RENEWAL_EARLY
    story.wait(1)
    renewed = story.accept(c.RenewLease, **holder(order))
    assert renewed.result == {"until_ms": story.world.now_ms + LEASE_MS, "lease_ms": LEASE_MS}
    assert story.refuse(c.RenewLease, **holder(order)).code is Code.LEASE_RENEWAL_EARLY
    story.wait(LEASE_MS)  # exactly at its end: the last moment
    story.accept(c.RenewLease, **holder(order))
    story.wait(LEASE_MS + 1)
    assert story.refuse(c.RenewLease, **holder(order)).code is Code.LEASE_EXPIRED


def test_who_may_not_renew(story: Story, work_id: str) -> None:
    order = story.claim(work_id)
    story.wait(LEASE_MS // 2)
    assert story.refuse(c.RenewLease, **holder(order, token="guess")).code is Code.LEASE_TOKEN_WRONG
    assert story.refuse(c.RenewLease, **holder(order, generation="2")).code is Code.GENERATION_FENCED
    assert story.refuse(c.RenewLease, **holder(order, attempt=2)).code is Code.LEASE_ENDED
    assert story.refuse(c.RenewLease, **holder(order, work_id="no")).code is Code.UNKNOWN_STREAM
    story.say(work_id, says.verified())
    assert story.refuse(c.RenewLease, **holder(order)).code is Code.WORK_ENDED


# --- release, expiry ----------------------------------------------------------------------------------------


def test_released_work_is_offered_again(story: Story, work_id: str) -> None:
    order = story.claim(work_id)
    assert story.refuse(c.ReleaseLease, **holder(order, token="guess")).code is Code.LEASE_TOKEN_WRONG
    story.accept(c.ReleaseLease, **holder(order, reason="busy"))
    work = story.work(work_id)
    assert (work.stage, work.lease, work.attempt) == ("queued", None, 1)
    assert story.refuse(c.ReleaseLease, **holder(order)).code is Code.LEASE_ENDED
    assert story.claim(work_id).attempt == 2


def test_a_lease_expires_only_after_its_end(story: Story, work_id: str) -> None:
    order = story.claim(work_id)
    story.wait(LEASE_MS)
    before = len(story.lines)
    story.accept(c.ExpireLease, work_id=work_id, attempt=1)
    assert len(story.lines) == before
    story.wait(1)
    story.accept(c.ExpireLease, work_id=work_id, attempt=2)  # of an attempt that is not the running one
    story.accept(c.ExpireLease, work_id="nothing", attempt=1)
    assert len(story.lines) == before
    story.accept(c.ExpireLease, work_id=work_id, attempt=1)
    assert story.work(work_id).stage == "queued"
    late = story.say(work_id, says.verified())
    assert late.result == {"evidence": "rejected", "reason": "LEASE_ENDED"}
    assert story.refuse(c.RenewLease, **holder(order)).code is Code.LEASE_ENDED


def test_evidence_after_the_end_does_not_count_even_before_expiry_was_decided(story: Story, work_id: str) -> None:
    story.claim(work_id)
    story.wait(LEASE_MS + 1)
    assert story.say(work_id, says.verified()).result["reason"] == "LEASE_EXPIRED"
    assert story.work(work_id).stage == "preparing"


def test_work_fails_when_its_attempts_are_used_up(story: Story, work_id: str) -> None:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        assert story.claim(work_id).attempt == attempt
        story.wait(LEASE_MS + 1)
        story.accept(c.ExpireLease, work_id=work_id, attempt=attempt)
    work = story.work(work_id)
    assert (work.stage, work.code) == ("failed", Code.WORK_ATTEMPTS_EXHAUSTED)
    assert "attempt 3" in work.message
    assert claim_refused(story, work_id) is Code.WORK_ENDED


@pytest.mark.parametrize("verb", ["health", "drain", "unload"])
def test_steps_of_a_resident_are_not_repeated(story: Story, verb: str) -> None:
    deployment_id = story.resident()
    work_id = story.job(deployment_id, verb)
    story.claim(work_id)
    story.wait(LEASE_MS + 1)
    story.accept(c.ExpireLease, work_id=work_id, attempt=1)
    work = story.work(work_id)
    assert (work.stage, work.code) == ("failed", Code.LEASE_EXPIRED)
    assert story.residency(deployment_id) == {"health": "resident", "drain": "draining", "unload": "failed"}[verb]


def test_a_load_that_ran_out_of_attempts_leaves_the_residency_failed(story: Story) -> None:
    deployment_id = story.deployment()
    work_id = story.job(deployment_id, "load")
    for attempt in range(1, ATTEMPTS_MAX + 1):
        story.claim(work_id)
        assert story.residency(deployment_id) == "loading"
        story.wait(LEASE_MS + 1)
        story.accept(c.ExpireLease, work_id=work_id, attempt=attempt)
    assert story.residency(deployment_id) == "failed"
    story.load(deployment_id)
    assert story.residency(deployment_id) == "resident"
