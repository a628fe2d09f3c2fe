"""The gates from files to a deployment: what each lets through, and each reason for which it does not."""

from __future__ import annotations

from msgspec.structs import replace

from domain.folding.states import ArtifactState, CandidateState, DeploymentState, ProfileState
from schemas import commands as c
from schemas import events as ev
from schemas.codes import Code
from schemas.tokens import NODES_PER_DEPLOYMENT_MAX, OPEN_WORK_PER_NODE_MAX
from tests.unit.domain import statements as says
from tests.unit.domain.story import ADAPTER, PROFILE, TASK, Story

NOWHERE = "0" * 64


def test_the_main_job_goes_through_every_gate(story: Story) -> None:
    deployment_id = story.resident()
    deployment = story.get(DeploymentState, f"deployment-{deployment_id}")
    candidate = story.get(CandidateState, f"candidate-{deployment.candidate_id}")
    assert deployment.candidate_digest == candidate.digest
    assert candidate.approved_by == "pat"
    assert story.residency(deployment_id) == "resident"
    created = story.events(ev.CandidateCreated)[0]
    assert (created.status, created.production) == ("lab_ready", False)


# --- verify -------------------------------------------------------------------------------------------------


def test_verified_files_are_known_with_their_place_on_the_node(story: Story) -> None:
    story.enrol()
    story.start_worker()
    artifact_id = story.verified_artifact()
    assert story.get(ArtifactState, f"artifact-{artifact_id}").verified == {"n1": "models/mini"}


def verify(story: Story, **fields: object) -> Code:
    values = {"artifact_id": NOWHERE, "node_id": "n1", "location": "models/mini", **fields}
    return story.refuse(c.VerifyArtifact, **values).code


def test_verify_needs_a_known_node_with_a_worker_and_a_known_set(story: Story) -> None:
    assert verify(story) is Code.UNKNOWN_STREAM
    story.enrol()
    assert verify(story) is Code.NODE_ABSENT
    story.start_worker()
    assert verify(story) is Code.UNKNOWN_STREAM
    artifact_id = story.register_artifact()
    assert verify(story, artifact_id=artifact_id, location="../elsewhere") is Code.ARTIFACT_PATH_ESCAPES
    story.accept(c.DisableNode, node_id="n1")
    assert verify(story, artifact_id=artifact_id) is Code.NODE_DISABLED


def test_a_node_has_a_bounded_number_of_open_work(story: Story) -> None:
    story.enrol()
    story.start_worker()
    artifact_id = story.register_artifact()
    for _ in range(OPEN_WORK_PER_NODE_MAX):
        story.work_for(c.VerifyArtifact, artifact_id=artifact_id, node_id="n1", location="models/mini")
    assert verify(story, artifact_id=artifact_id) is Code.NODE_FULL


# --- assess -------------------------------------------------------------------------------------------------


def test_assessing_needs_files_verified_on_that_node(story: Story) -> None:
    story.enrol()
    story.start_worker()
    fields = {"node_id": "n1", "adapter": ADAPTER, "task": TASK}
    assert story.refuse(c.RequestAssessment, artifact_id=NOWHERE, **fields).code is Code.UNKNOWN_STREAM
    artifact_id = story.verified_artifact()
    story.work_for(c.RequestAssessment, artifact_id=artifact_id, **fields)
    story.enrol("n2")
    story.start_worker("n2")
    fields["node_id"] = "n2"
    assert story.refuse(c.RequestAssessment, artifact_id=artifact_id, **fields).code is Code.ARTIFACT_NOT_VERIFIED


# --- profile ------------------------------------------------------------------------------------------------


def test_equal_settings_are_one_profile(story: Story) -> None:
    assessment_id = story.assessment()
    first = story.accept(c.CreateProfile, assessment_id=assessment_id, profile=PROFILE).result["profile_id"]
    before = len(story.lines)
    assert story.accept(c.CreateProfile, assessment_id=assessment_id, profile=PROFILE).result["profile_id"] == first
    assert len(story.lines) == before
    other = replace(PROFILE, normalize=False)
    assert story.accept(c.CreateProfile, assessment_id=assessment_id, profile=other).result["profile_id"] != first
    assert story.get(ProfileState, f"profile-{first}").assessment_id == assessment_id


def test_a_profile_needs_a_compatible_assessment_for_its_adapter_and_task(story: Story) -> None:
    refused = story.refuse(c.CreateProfile, assessment_id="nothing", profile=PROFILE)
    assert refused.code is Code.UNKNOWN_STREAM
    assessment_id = story.assessment()
    for wrong in (replace(PROFILE, adapter="other_adapter"), replace(PROFILE, task="reranking")):
        refused = story.refuse(c.CreateProfile, assessment_id=assessment_id, profile=wrong)
        assert refused.code is Code.RUNTIME_INCOMPATIBLE


def test_an_incompatible_assessment_supports_no_profile_and_says_why(story: Story) -> None:
    refused = story.refuse(c.CreateProfile, assessment_id=story.assessment(compatible=False), profile=PROFILE)
    assert refused.code is Code.RUNTIME_INCOMPATIBLE
    assert "no adapter reads this architecture" in refused.message


def test_an_assessment_that_has_not_ended_supports_no_profile(story: Story) -> None:
    story.enrol()
    story.start_worker()
    artifact_id = story.verified_artifact()
    fields = {"artifact_id": artifact_id, "node_id": "n1", "adapter": ADAPTER, "task": TASK}
    work_id = story.work_for(c.RequestAssessment, **fields)
    assert story.refuse(c.CreateProfile, assessment_id=work_id, profile=PROFILE).code is Code.RUNTIME_INCOMPATIBLE
    story.finish(work_id, says.failed())
    assert story.refuse(c.CreateProfile, assessment_id=work_id, profile=PROFILE).code is Code.RUNTIME_INCOMPATIBLE
    verify_id = next(iter(story.orders))
    assert story.refuse(c.CreateProfile, assessment_id=verify_id, profile=PROFILE).code is Code.UNKNOWN_STREAM


# --- probe --------------------------------------------------------------------------------------------------


def test_a_probe_needs_its_profile_and_the_environment_that_was_assessed(story: Story) -> None:
    assessment_id = story.assessment()
    refused = story.refuse(c.RequestProbe, assessment_id=assessment_id, profile_id=NOWHERE)
    assert refused.code is Code.UNKNOWN_STREAM
    assert story.refuse(c.RequestProbe, assessment_id="no", profile_id=NOWHERE).code is Code.UNKNOWN_STREAM
    profile_id = story.accept(c.CreateProfile, assessment_id=assessment_id, profile=PROFILE).result["profile_id"]
    story.start_worker(worker="0.2.0")
    refused = story.refuse(c.RequestProbe, assessment_id=assessment_id, profile_id=profile_id)
    assert refused.code is Code.ENVIRONMENT_CHANGED
    story.start_worker(worker="0.1.0")
    story.work_for(c.RequestProbe, assessment_id=assessment_id, profile_id=profile_id)
    story.accept(c.DisableNode, node_id="n1")
    refused = story.refuse(c.RequestProbe, assessment_id=assessment_id, profile_id=profile_id)
    assert refused.code is Code.NODE_DISABLED


def test_a_probe_needs_a_profile_for_what_was_assessed(story: Story) -> None:
    first = story.assessment()
    profile_id = story.accept(c.CreateProfile, assessment_id=first, profile=PROFILE).result["profile_id"]
    artifact_id = story.work(first).spec.artifact_id
    fields = {"artifact_id": artifact_id, "node_id": "n1", "adapter": "other_adapter", "task": TASK}
    other = story.finish(story.work_for(c.RequestAssessment, **fields), says.assessed(story.fingerprint()))
    refused = story.refuse(c.RequestProbe, assessment_id=other, profile_id=profile_id)
    assert refused.code is Code.RUNTIME_INCOMPATIBLE


# --- approval -----------------------------------------------------------------------------------------------


def test_only_the_exact_digest_can_be_approved(story: Story) -> None:
    refused = story.refuse(c.GrantApproval, candidate_id="no", candidate_digest=NOWHERE)
    assert refused.code is Code.UNKNOWN_STREAM
    candidate = story.candidate()
    refused = story.refuse(c.GrantApproval, candidate_id=candidate.candidate_id, candidate_digest=NOWHERE)
    assert refused.code is Code.APPROVAL_MISMATCH
    assert refused.detail == {"expected": candidate.digest, "given": NOWHERE}
    story.approve(candidate)
    before = len(story.lines)
    story.approve(candidate)
    assert len(story.lines) == before


def test_a_revoked_approval_deploys_and_loads_nothing_new(story: Story) -> None:
    candidate = story.candidate()
    assert story.refuse(c.RevokeApproval, candidate_id="no").code is Code.UNKNOWN_STREAM
    story.approve(candidate)
    deployment_id = story.deploy(candidate)
    story.accept(c.RevokeApproval, candidate_id=candidate.candidate_id)
    assert create(story, candidate, name="second") is Code.CANDIDATE_NOT_APPROVED
    refused = story.refuse(c.RequestJob, deployment_id=deployment_id, node_id="n1", verb="load")
    assert refused.code is Code.CANDIDATE_NOT_APPROVED
    before = len(story.lines)
    story.accept(c.RevokeApproval, candidate_id=candidate.candidate_id)
    assert len(story.lines) == before


def test_a_revoked_approval_stops_loads_that_wait_or_run(story: Story) -> None:
    deployment_id = story.deployment()
    candidate_id = story.get(DeploymentState, f"deployment-{deployment_id}").candidate_id
    waiting = story.job(deployment_id, "load")
    story.accept(c.RevokeApproval, candidate_id=candidate_id)
    assert (story.work(waiting).stage, story.work(waiting).code) == ("failed", Code.CANDIDATE_NOT_APPROVED)
    assert story.residency(deployment_id) == "failed"
    story.approve(story.get(CandidateState, f"candidate-{candidate_id}"))
    running = story.job(deployment_id, "load")
    story.claim(running)
    story.accept(c.RevokeApproval, candidate_id=candidate_id)
    assert story.work(running).cancel_requested


# --- deployment ---------------------------------------------------------------------------------------------


def create(story: Story, candidate: CandidateState, **fields: object) -> Code:
    values = {
        "name": "search", "candidate_id": candidate.candidate_id, "candidate_digest": candidate.digest,
        "capability": TASK, "node_ids": ["n1"], **fields,
    }  # fmt: skip
    return story.refuse(c.CreateDeployment, **values).code


def test_a_deployment_needs_an_approved_candidate_and_its_exact_digest(story: Story) -> None:
    candidate = story.candidate()
    assert create(story, candidate) is Code.CANDIDATE_NOT_APPROVED
    story.approve(candidate)
    assert create(story, candidate, candidate_digest=NOWHERE) is Code.APPROVAL_MISMATCH
    assert create(story, candidate, candidate_id="no") is Code.UNKNOWN_STREAM
    assert create(story, candidate, capability="reranking") is Code.RUNTIME_INCOMPATIBLE


def test_a_deployment_needs_nodes_that_are_what_was_probed(story: Story) -> None:
    candidate = story.candidate()
    story.approve(candidate)
    assert create(story, candidate, node_ids=[]) is Code.COMMAND_MALFORMED
    assert create(story, candidate, node_ids=["n1", "n1"]) is Code.COMMAND_MALFORMED
    many = [f"n{number}" for number in range(NODES_PER_DEPLOYMENT_MAX + 1)]
    assert create(story, candidate, node_ids=many) is Code.COMMAND_MALFORMED
    assert create(story, candidate, node_ids=["n1", "ghost"]) is Code.UNKNOWN_STREAM
    story.enrol("n2")
    assert create(story, candidate, node_ids=["n2"]) is Code.ENVIRONMENT_CHANGED
    story.start_worker("n2")
    assert create(story, candidate, node_ids=["n2"]) is Code.ARTIFACT_NOT_VERIFIED
    story.verified_artifact("n2")
    story.accept(c.DisableNode, node_id="n2")
    assert create(story, candidate, node_ids=["n2"]) is Code.NODE_DISABLED


def test_a_name_is_taken_until_its_deployment_is_retired(story: Story) -> None:
    candidate = story.candidate()
    story.approve(candidate)
    first = story.deploy(candidate)
    assert create(story, candidate) is Code.NAME_TAKEN
    story.accept(c.RetireDeployment, deployment_id=first)
    second = story.deploy(candidate)
    assert second != first
    assert create(story, candidate) is Code.NAME_TAKEN


def test_retiring_waits_for_residents_to_be_gone(story: Story) -> None:
    assert story.refuse(c.RetireDeployment, deployment_id="no").code is Code.UNKNOWN_STREAM
    deployment_id = story.resident()
    refused = story.refuse(c.RetireDeployment, deployment_id=deployment_id)
    assert refused.code is Code.RESIDENCY_CONFLICT
    story.finish(story.job(deployment_id, "unload"), says.unloaded())
    story.accept(c.RetireDeployment, deployment_id=deployment_id)
    before = len(story.lines)
    story.accept(c.RetireDeployment, deployment_id=deployment_id)
    assert len(story.lines) == before
    refused = story.refuse(c.RequestJob, deployment_id=deployment_id, node_id="n1", verb="load")
    assert refused.code is Code.RESIDENCY_CONFLICT


def test_a_failed_unload_may_have_left_a_process_so_it_is_not_retired(story: Story) -> None:
    deployment_id = story.resident()
    story.finish(story.job(deployment_id, "unload"), says.failed())
    assert story.residency(deployment_id) == "failed"
    refused = story.refuse(c.RetireDeployment, deployment_id=deployment_id)
    assert refused.code is Code.RESIDENCY_CONFLICT
    story.accept(c.CancelWork, work_id=story.job(deployment_id, "unload"))
    assert story.refuse(c.RetireDeployment, deployment_id=deployment_id).code is Code.RESIDENCY_CONFLICT
    story.start_worker()  # whatever was left went with the worker that held it
    story.accept(c.RetireDeployment, deployment_id=deployment_id)


def test_a_failed_load_left_nothing_so_it_is_retired(story: Story) -> None:
    deployment_id = story.deployment()
    story.finish(story.job(deployment_id, "load"), says.failed())
    story.accept(c.RetireDeployment, deployment_id=deployment_id)
