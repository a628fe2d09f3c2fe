"""Evidence: what a statement brings about, what it falls short of, and when it is kept without counting."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from domain.deciding.outcomes import Rejected
from domain.folding.fold import evidence_digest
from domain.folding.states import CandidateState
from schemas import commands as c
from schemas import events as ev
from schemas import evidence as se
from schemas.canonical import digest_of
from schemas.codes import Code
from schemas.evidence import SignedEvidence
from tests.unit.domain import statements as says
from tests.unit.domain.story import PROFILE, Story

ELSEWHERE = says.FINGERPRINT_ELSEWHERE


# --- a probe that proves it ---------------------------------------------------------------------------------


def test_a_candidate_binds_set_profile_environment_and_evidence(story: Story) -> None:
    candidate = story.candidate()
    completed = next(event for event in story.events(ev.WorkCompleted) if event.work_id == candidate.candidate_id)
    created = story.events(ev.CandidateCreated)[0]
    assert created.evidence_sha256 == evidence_digest(completed.signed.payload)
    named = {
        "artifact_id": candidate.artifact_id, "profile_id": candidate.profile_id,
        "fingerprint": candidate.fingerprint, "probe_id": candidate.candidate_id,
        "evidence_sha256": created.evidence_sha256,
    }  # fmt: skip
    assert candidate.digest == digest_of(named)
    assert story.work(candidate.candidate_id).evidence_sha256 == created.evidence_sha256


SHORTFALLS: dict[str, tuple[dict[str, Any], Code]] = {
    "no process": ({"health": says.health(process=False)}, Code.HEALTH_FAILED),
    "no runtime": ({"health": says.health(runtime=False)}, Code.HEALTH_FAILED),
    "no model": ({"health": says.health(model=False)}, Code.HEALTH_FAILED),
    "unsound output": ({"health": says.health(capability=False, detail="NaN")}, Code.HEALTH_FAILED),
    "no output digest": ({"health": says.health(output_digest=None)}, Code.HEALTH_FAILED),
    "no dimensions": ({"health": says.health(output_dimensions=0)}, Code.HEALTH_FAILED),
    "another environment": ({"fingerprint": ELSEWHERE}, Code.ENVIRONMENT_CHANGED),
    "isolation not proven": ({"offline": says.offline(proven=False)}, Code.OFFLINE_NOT_PROVEN),
}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [*SHORTFALLS.values(), ({"memory": says.memory(reclaim_complete=False)}, Code.RECLAIM_INCOMPLETE)],
    ids=[*SHORTFALLS, "memory kept"],
)
def test_a_probe_that_falls_short_has_failed_and_makes_no_candidate(
    story: Story, wrong: dict[str, Any], code: Code
) -> None:
    work_id = story.probe()
    story.finish(work_id, replace(says.probed(story.fingerprint()), **wrong))
    work = story.work(work_id)
    assert (work.stage, work.code, work.lease) == ("failed", code, None)
    assert f"candidate-{work_id}" not in {line.stream for line in story.lines}
    refused = story.refuse(c.GrantApproval, candidate_id=work_id, candidate_digest="a" * 64)
    assert refused.code is Code.UNKNOWN_STREAM
    failed = story.events(ev.WorkFailed)[-1]
    assert failed.signed is not None  # what it saw is kept, whole


@pytest.mark.parametrize(("wrong", "code"), SHORTFALLS.values(), ids=SHORTFALLS)
def test_a_load_that_falls_short_leaves_the_residency_failed(story: Story, wrong: dict[str, Any], code: Code) -> None:
    deployment_id = story.deployment()
    work_id = story.job(deployment_id, "load")
    story.finish(work_id, replace(says.loaded(story.fingerprint()), **wrong))
    assert (story.work(work_id).stage, story.work(work_id).code) == ("failed", code)
    assert story.residency(deployment_id) == "failed"


def test_a_profile_may_do_without_proof_of_isolation(story: Story) -> None:
    profile = replace(PROFILE, require_offline_proof=False)
    work_id = story.probe(profile)
    story.finish(work_id, says.probed(story.fingerprint(), offline=says.offline(proven=False)))
    assert story.get(CandidateState, f"candidate-{work_id}").approved_by is None


@pytest.mark.parametrize("wrong", [{"files": 1}, {"size": 1_099}, {"location": "somewhere/else"}])
def test_verified_has_to_mean_every_file_at_the_place_that_was_asked(story: Story, wrong: dict[str, Any]) -> None:
    story.enrol()
    story.start_worker()
    artifact_id = story.register_artifact()
    work_id = story.work_for(c.VerifyArtifact, artifact_id=artifact_id, node_id="n1", location="models/mini")
    story.finish(work_id, says.verified(**wrong))
    assert (story.work(work_id).stage, story.work(work_id).code) == ("failed", Code.ARTIFACT_NOT_VERIFIED)
    assert not story.events(ev.ArtifactVerified)


# --- other statements ---------------------------------------------------------------------------------------


def test_a_failure_is_taken_as_told(story: Story) -> None:
    work_id = story.probe()
    story.finish(work_id, says.failed(Code.OUT_OF_MEMORY, "17 GiB short"))
    work = story.work(work_id)
    assert (work.stage, work.code, work.message) == ("failed", Code.OUT_OF_MEMORY, "17 GiB short")


def test_progress_moves_the_stage_forwards_only(story: Story) -> None:
    work_id = story.probe()
    story.claim(work_id)
    for stage in ("preparing", "loading", "healthchecking"):
        story.say(work_id, se.Progress(stage))
        assert story.work(work_id).stage == stage
    before = len(story.lines)
    assert story.say(work_id, se.Progress("loading")).result == {"evidence": "accepted"}  # delivered late
    assert (story.work(work_id).stage, len(story.lines)) == ("healthchecking", before)
    story.claim(work_id)
    assert story.work(work_id).stage == "preparing"  # a new attempt begins at the beginning


# --- what may not count -------------------------------------------------------------------------------------


def answers() -> dict[str, se.Statement]:
    return {
        "verify": says.verified(), "assess": says.assessed("a" * 64), "probe": says.probed("a" * 64),
        "load": says.loaded("a" * 64), "health": se.HealthChecked(says.health(), 1), "drain": says.drained(),
        "unload": says.unloaded(),
    }  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in answers() if kind != "probe"])
def test_an_answer_to_another_kind_of_work_does_not_count(story: Story, kind: str) -> None:
    work_id = story.probe()
    story.claim(work_id)
    outcome = story.say(work_id, answers()[kind])
    assert outcome.result == {"evidence": "rejected", "reason": "EVIDENCE_MISPLACED"}
    assert story.work(work_id).stage == "preparing"


@pytest.mark.parametrize("kind", [kind for kind in answers() if kind != "drain"])
def test_nor_does_it_for_a_serving_job(story: Story, kind: str) -> None:
    deployment_id = story.resident()
    work_id = story.job(deployment_id, "drain")
    story.claim(work_id)
    assert story.say(work_id, answers()[kind]).result["reason"] == "EVIDENCE_MISPLACED"


def test_a_wrong_signature_another_attempt_or_no_lease_do_not_count(story: Story) -> None:
    work_id = story.probe()
    probed = says.probed(story.fingerprint())
    assert story.say(work_id, probed).result["reason"] == "LEASE_ENDED"  # never claimed
    story.claim(work_id)
    assert story.say(work_id, probed, signature_valid=False).result["reason"] == "SIGNATURE_INVALID"
    assert story.say(work_id, probed, attempt=2).result["reason"] == "LEASE_ENDED"
    assert story.say(work_id, probed, generation="0").result["reason"] == "GENERATION_FENCED"
    story.say(work_id, probed)
    assert story.say(work_id, probed).result["reason"] == "WORK_ENDED"
    assert story.work(work_id).rejected_evidence == 5
    assert len(story.events(ev.CandidateCreated)) == 1


def test_a_node_does_not_speak_for_anothers_work(story: Story) -> None:
    work_id = story.probe()
    story.claim(work_id)
    story.enrol("n2")
    story.start_worker("n2")
    outcome = story.say(work_id, says.probed(story.fingerprint()), node_id="n2")
    assert outcome.result["reason"] == "EVIDENCE_MISPLACED"
    assert story.work(work_id).stage == "preparing"


def test_evidence_about_unknown_work_is_kept_with_its_node(story: Story) -> None:
    story.enrol()
    story.start_worker()
    before = len(story.lines)
    outcome = story.say("nothing", says.verified())
    assert outcome.result == {"evidence": "rejected", "reason": "UNKNOWN_STREAM"}
    assert [line.stream for line in story.lines[before:]] == ["node-n1"]


def test_what_is_no_evidence_or_of_no_node_is_refused(story: Story) -> None:
    signed = SignedEvidence('{"no": "evidence"}', "")
    refused = story.refuse(c.SubmitEvidence, signed=signed, signature_valid=True)
    assert refused.code is Code.COMMAND_MALFORMED
    story.enrol()
    story.start_worker()
    story.say("nothing", says.verified())
    payload = story.events(ev.EvidenceRejected)[-1].signed.payload.replace('"n1"', '"ghost"')
    outcome = story.do(c.SubmitEvidence, signed=SignedEvidence(payload, ""), signature_valid=True)
    assert isinstance(outcome, Rejected)
    assert outcome.code is Code.UNKNOWN_STREAM
    payload = story.events(ev.EvidenceRejected)[-1].signed.payload
    work_id = story.work_for(
        c.VerifyArtifact, artifact_id=story.register_artifact(), node_id="n1", location="models/mini"
    )
    story.claim(work_id)
    payload = payload.replace('"nothing"', f'"{work_id}"')
    outcome = story.do(c.SubmitEvidence, signed=SignedEvidence(payload, ""), signature_valid=True)
    assert getattr(outcome, "result", {})["reason"] == "EVIDENCE_MISPLACED"  # sent under another id than its own
