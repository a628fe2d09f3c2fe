"""Events that got into the log by another way than a decision: they change no state, and the auditor lists them."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import commands as c
from schemas import events as ev
from schemas import evidence as se
from schemas.codes import Code
from schemas.events import Event
from schemas.evidence import SignedEvidence
from tests.unit.domain import statements as says
from tests.unit.domain.story import Story, audited, environment, folded

BY_HAND: dict[str, Any] = {"at_ms": 1_000_000, "command_id": "by-hand", "actor": "nobody"}
SIGNED = SignedEvidence("{}", "")


def changes_nothing(story: Story, stream: str, event: Event, reason: Code) -> None:
    lines = story.tampered(stream, event)
    assert folded(lines) == folded(story.lines)
    auditor = audited(lines)
    assert auditor.stale_count == 1
    position, where, what = auditor.stale[0]
    assert (position, where) == (len(lines), stream)
    assert what == f"{type(event).__name__} does not count: {reason}"


def holder(work_id: str, generation: str = "1", attempt: int = 1) -> dict[str, Any]:
    return {"work_id": work_id, "generation": generation, "attempt": attempt, **BY_HAND}


def test_the_word_of_a_dead_generation_about_its_work(story: Story) -> None:
    work_id = story.probe()
    story.claim(work_id)
    story.start_worker()
    stream, held, probed = f"work-{work_id}", holder(work_id), says.probed(story.fingerprint())
    for event in (
        ev.WorkProgressed(stage="ready", signed=SIGNED, **held),
        ev.WorkCompleted(result=probed, signed=SIGNED, **held),
        ev.WorkFailed(code=Code.LOAD_FAILED, message="", signed=SIGNED, **held),
        ev.WorkCancelled(signed=SIGNED, **held),
        ev.LeaseRenewed(until_ms=2_000_000, **held),
        ev.LeaseEnded(cause=Code.LEASE_ENDED, detail="", again=True, **held),
    ):
        changes_nothing(story, stream, event, Code.LEASE_ENDED)
    story.claim(work_id)
    for generation, attempt, reason in (("1", 1, Code.GENERATION_FENCED), ("2", 1, Code.LEASE_ENDED)):
        held = holder(work_id, generation, attempt)
        changes_nothing(story, stream, ev.WorkCompleted(result=probed, signed=SIGNED, **held), reason)
    late = {**holder(work_id, "2", 2), "at_ms": story.world.now_ms + 30_001}
    changes_nothing(story, stream, ev.WorkCompleted(result=probed, signed=SIGNED, **late), Code.LEASE_EXPIRED)


def test_a_grant_that_cannot_be(story: Story) -> None:
    work_id = story.probe()
    story.start_worker()
    stream = f"work-{work_id}"

    def grant(generation: str, attempt: int) -> ev.LeaseGranted:
        return ev.LeaseGranted(
            node_id="n1", token_sha256="a" * 64, until_ms=2_000_000, deadline_ms=3_000_000,
            **holder(work_id, generation, attempt),
        )  # fmt: skip

    changes_nothing(story, stream, grant("2", 2), Code.LEASE_ENDED)
    story.claim(work_id)
    changes_nothing(story, stream, grant("2", 2), Code.LEASE_HELD)
    story.start_worker()
    changes_nothing(story, stream, grant("1", 2), Code.GENERATION_FENCED)
    story.finish(work_id, says.probed(story.fingerprint()))
    changes_nothing(story, stream, grant("3", 3), Code.WORK_ENDED)


def test_an_end_after_the_end(story: Story) -> None:
    work_id = story.candidate().candidate_id
    stream, held = f"work-{work_id}", holder(work_id)
    failed = ev.WorkFailed(code=Code.WORK_DEADLINE, message="", **held)
    asked = ev.CancelRequested(work_id=work_id, reason="", **BY_HAND)
    for event in (failed, ev.WorkCancelled(**held), asked):
        changes_nothing(story, stream, event, Code.WORK_ENDED)


@pytest.mark.parametrize("stage", ["queued", "completed", "failed", "cancelled"])
def test_progress_is_only_progress(story: Story, stage: Any) -> None:
    work_id = story.probe()
    story.claim(work_id)
    event = ev.WorkProgressed(stage=stage, signed=SIGNED, **holder(work_id))
    changes_nothing(story, f"work-{work_id}", event, Code.EVIDENCE_MISPLACED)


def test_a_generation_that_comes_back(story: Story) -> None:
    story.enrol()
    story.start_worker()
    story.start_worker()
    lost = ev.SessionLost(node_id="n1", generation="1", cause="WORKER_LOST", silent_ms=1, **BY_HAND)
    changes_nothing(story, "node-n1", lost, Code.GENERATION_FENCED)
    for generation in ("1", "2"):
        again = ev.WorkerRegistered(
            node_id="n1", generation=generation, boot_id="b", environment=environment(), fingerprint="a" * 64,
            capabilities={}, session_public_key="other", artifact_root="/", inventory=[], **BY_HAND,
        )  # fmt: skip
        changes_nothing(story, "node-n1", again, Code.GENERATION_FENCED)


def test_a_residency_that_cannot_follow(story: Story) -> None:
    deployment_id = story.resident()
    load_id = list(story.orders)[-1]
    story.start_worker()
    story.load(deployment_id)
    stream = f"deployment-{deployment_id}"

    def moved(state: Any, generation: str, work_id: str = load_id, node_id: str = "n1") -> ev.ResidencyChanged:
        return ev.ResidencyChanged(
            deployment_id=deployment_id, node_id=node_id, state=state, generation=generation, work_id=work_id,
            cause="by hand", **BY_HAND,
        )  # fmt: skip

    changes_nothing(story, stream, moved("lost", "1"), Code.GENERATION_FENCED)
    changes_nothing(story, stream, moved("draining", "1"), Code.GENERATION_FENCED)
    changes_nothing(story, stream, moved("absent", "2"), Code.RESIDENCY_CONFLICT)
    changes_nothing(story, stream, moved("loading", "2", node_id="n2"), Code.RESIDENCY_CONFLICT)
    unload_id = story.job(deployment_id, "unload")
    changes_nothing(story, stream, moved("absent", "2"), Code.EVIDENCE_MISPLACED)
    changes_nothing(story, stream, moved("draining", "2", unload_id), Code.RESIDENCY_CONFLICT)
    story.finish(unload_id, says.unloaded())
    story.accept(c.RetireDeployment, deployment_id=deployment_id)
    changes_nothing(story, stream, moved("loading", "2"), Code.RESIDENCY_CONFLICT)


def test_a_second_beginning_and_a_step_of_nothing(story: Story) -> None:
    candidate = story.candidate()
    stream = f"candidate-{candidate.candidate_id}"
    changes_nothing(story, stream, story.events(ev.CandidateCreated)[0], Code.CONFLICT)
    enabled = ev.NodeEnabled(node_id="ghost", **BY_HAND)
    changes_nothing(story, "node-ghost", enabled, Code.UNKNOWN_STREAM)
    changes_nothing(story, stream, enabled, Code.UNKNOWN_STREAM)


def test_an_approval_of_another_digest(story: Story) -> None:
    candidate = story.candidate()
    forged = ev.ApprovalGranted(
        candidate_id=candidate.candidate_id, candidate_digest="a" * 64, approver="nobody", note="", **BY_HAND
    )
    changes_nothing(story, f"candidate-{candidate.candidate_id}", forged, Code.APPROVAL_MISMATCH)


def test_rejected_evidence_is_listed_and_no_fault(story: Story) -> None:
    work_id = story.probe()
    story.claim(work_id)
    story.say(work_id, se.Progress("loading"), attempt=7)
    auditor = audited(story.lines)
    assert (auditor.rejected_count, auditor.violation_count, auditor.stale_count) == (1, 0, 0)
    assert auditor.rejected[0].what.startswith("LEASE_ENDED")
