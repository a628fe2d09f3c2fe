"""The auditor: what it calls a violation. Each test does one forbidden thing to a log that was sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from domain import audit
from domain.folding.states import CandidateState
from schemas import commands as c
from schemas import events as ev
from schemas import evidence as se
from schemas.codes import Code
from schemas.events import Event
from schemas.evidence import Evidence, SignedEvidence
from tests.unit.domain import statements as says
from tests.unit.domain.story import Line, Story, audited

BY_HAND: dict[str, Any] = {"at_ms": 1_000_000, "command_id": "by-hand", "actor": "nobody"}


def violations(lines: list[Line], **fields: Any) -> list[str]:
    return [finding.what for finding in audited(lines, **fields).violations]


def changed(story: Story, kind: type[Event], change: Callable[[Any], Event]) -> list[Line]:
    """The story's log with its last event of a kind changed."""
    place = max(number for number, line in enumerate(story.lines) if type(line.event) is kind)
    lines = list(story.lines)
    lines[place] = lines[place]._replace(event=change(lines[place].event))
    return lines


def resigned(event: Any, **fields: Any) -> Event:
    """The event with its evidence told differently, and signed again."""
    evidence = msgspec.json.decode(event.signed.payload, type=Evidence)
    payload = msgspec.json.encode(replace(evidence, **fields)).decode()
    made: Event = replace(event, signed=SignedEvidence(payload, "x"))
    return made


def test_a_sound_log_has_no_finding(story: Story) -> None:
    story.resident()
    auditor = audited(story.lines)
    assert (auditor.violations, auditor.stale, auditor.rejected) == ([], [], [])
    assert auditor.events == auditor.position == len(story.lines)
    assert auditor.signatures_checked == len(story.events(ev.WorkCompleted)) == 4
    assert auditor.states == {s: state for s, state in story.world.states.items() if state is not None}


def test_positions_grow_and_versions_follow(story: Story) -> None:
    story.enrol()
    story.start_worker()
    first, second = story.lines
    assert violations([first, second._replace(position=1)]) == ["position 1 after 1"]
    assert violations([first, second._replace(version=3)]) == ["version 3 after 1"]
    assert violations([first]) == []


def test_every_signature_is_checked_with_its_generations_key(story: Story) -> None:
    story.candidate()
    seen: list[str] = []

    def none_valid(key: str, signed: SignedEvidence) -> bool:
        seen.append(key)
        return False

    found = violations(story.lines, signature_valid=none_valid)
    assert len(found) == 3
    assert all("SIGNATURE_INVALID" in what for what in found)
    assert seen == ["key"] * 3


@pytest.mark.parametrize(
    "fields", [{"work_id": "id0001"}, {"generation": "2"}, {"attempt": 2}, {"node_id": "n2"}], ids=str
)
def test_evidence_about_something_else(story: Story, fields: dict[str, Any]) -> None:
    story.candidate()
    lines = changed(story, ev.WorkCompleted, lambda event: resigned(event, **fields))
    assert any("is about other work" in what for what in violations(lines))


def test_events_that_say_something_else_than_their_evidence(story: Story) -> None:
    story.candidate()
    better = replace(says.probed(story.fingerprint()), load_ms=1.0)
    lines = changed(story, ev.WorkCompleted, lambda event: replace(event, result=better))
    assert [what for what in violations(lines) if "say different things" in what]
    place = {"artifact_id": story.register_artifact(), "node_id": "n1", "location": "models/mini"}
    story.finish(story.work_for(c.VerifyArtifact, **place), says.failed())
    lines = changed(story, ev.WorkFailed, lambda event: replace(event, code=Code.HEALTH_FAILED))
    assert [what for what in violations(lines) if "say different things" in what]


def test_a_child_that_died_has_its_owners_word_for_it(story: Story) -> None:
    deployment_id = story.resident()
    died = se.ResidentLost(deployment_id=deployment_id, code=Code.CHILD_DIED, message="signal 9")
    story.say(list(story.orders)[-1], died)
    for fields, found in (
        ({"statement": replace(died, deployment_id="other")}, "say different things"),
        ({"statement": says.drained()}, "say different things"),
        ({"generation": "2"}, "is about other work"),
        ({"node_id": "n2"}, "is about other work"),
    ):
        lines = changed(story, ev.ResidencyChanged, lambda event, fields=fields: resigned(event, **fields))
        assert any(found in what for what in violations(lines)), fields


def test_evidence_that_counts_twice_or_cannot_be_read(story: Story) -> None:
    story.candidate()
    lines = changed(story, ev.WorkCompleted, lambda event: resigned(event, evidence_id="e0001"))
    assert "evidence e0001 counts twice" in violations(lines)
    lines = changed(story, ev.WorkCompleted, lambda event: replace(event, signed=SignedEvidence("{", "")))
    assert any("cannot be read" in what for what in violations(lines))


def test_a_lease_for_another_generation(story: Story) -> None:
    work_id = story.probe()
    granted = ev.LeaseGranted(
        work_id=work_id, node_id="n1", generation="7", attempt=1, token_sha256="a" * 64, until_ms=2_000_000,
        deadline_ms=3_000_000, **BY_HAND,
    )  # fmt: skip
    found = violations(story.tampered(f"work-{work_id}", granted))
    assert found[0] == "lease for generation 7, which node n1 has not"
    assert "its lease belongs to a generation that is over" in found


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"evidence_sha256": "a" * 64}, "the probe's evidence is not what the candidate names"),
        ({"profile_id": "a" * 64}, "the probe was about something else than the candidate names"),
        ({"candidate_digest": "a" * 64}, "the digest is not that of what it names"),
        ({"probe_id": "id0001"}, "there is no completed probe behind this candidate"),
    ],
)
def test_a_candidate_without_its_proof(story: Story, fields: dict[str, Any], found: str) -> None:
    story.candidate()
    lines = changed(story, ev.CandidateCreated, lambda event: replace(event, **fields))
    assert violations(lines) == [found]


def test_a_deployment_without_its_approval(story: Story) -> None:
    deployment_id = story.deployment()
    without = [line for line in story.lines if not isinstance(line.event, ev.ApprovalGranted)]
    assert violations(without) == ["deployed without a standing approval"]
    for field in ("candidate_digest", "artifact_id", "profile_id", "fingerprint"):
        lines = changed(story, ev.DeploymentCreated, lambda event, field=field: replace(event, **{field: "a" * 64}))
        assert violations(lines) == ["deployed without an approval of this exact digest"]
    assert deployment_id


def test_an_approval_in_anothers_name(story: Story) -> None:
    story.approve(story.candidate())
    lines = changed(story, ev.ApprovalGranted, lambda event: replace(event, approver="the director"))
    assert violations(lines) == ["pat approved in the name of the director"]


@pytest.mark.parametrize(
    ("kind", "fields", "found"),
    [
        (ev.ArtifactRegistered, {"bytes": 1}, "the files are not the set that the id names"),
        (ev.ArtifactRegistered, {"files": []}, "the files are not the set that the id names"),
        (ev.ProfileCreated, {"profile": msgspec.UNSET}, "the settings are not what the id names"),
        (ev.WorkerRegistered, {"fingerprint": "a" * 64}, "the environment is not what the fingerprint names"),
        (ev.ArtifactVerified, {"location": "elsewhere"}, "no completed verification stands behind this"),
        (ev.ArtifactVerified, {"node_id": "n2"}, "no completed verification stands behind this"),
    ],
)
def test_content_that_its_name_does_not_name(
    story: Story, kind: type[Event], fields: dict[str, Any], found: str
) -> None:
    story.candidate()

    def change(event: Any) -> Event:
        known = {"profile": replace(event.profile, normalize=False)} if "profile" in fields else fields
        made: Event = replace(event, **known)
        return made

    assert found in violations(changed(story, kind, change))


def test_a_resident_nobody_loaded(story: Story) -> None:
    """The hole that fencing by generation leaves: a load that waits for its next attempt, taken for done."""
    deployment_id = story.deployment()
    work_id = story.job(deployment_id, "load")
    story.claim(work_id)
    story.start_worker()
    forged = ev.ResidencyChanged(
        deployment_id=deployment_id, node_id="n1", state="resident", generation="1", work_id=work_id, cause="",
        **BY_HAND,
    )  # fmt: skip
    lines = story.tampered(f"deployment-{deployment_id}", forged)
    assert violations(lines) == [
        "resident without a completed load of this generation", "held by a generation that is over",
    ]  # fmt: skip
    lines = story.tampered(f"deployment-{deployment_id}", replace(forged, work_id="id0001", state="failed"))
    assert not violations(lines)  # it does not even count
    assert audited(lines).stale_count == 1


def test_an_event_in_a_stream_that_is_not_its_own(story: Story) -> None:
    story.enrol()
    story.enrol("n2")
    lines = story.tampered("node-n1", ev.NodeDisabled(node_id="n2", reason="", **BY_HAND))
    assert violations(lines) == ["NodeDisabled is about node-n2"]


def test_what_must_not_be_left_at_the_end(story: Story) -> None:
    deployment_id = story.resident()
    work_id = story.job(deployment_id, "health")
    disabled = ev.NodeDisabled(node_id="n1", reason="", **BY_HAND)
    assert violations(story.tampered("node-n1", disabled)) == [
        "open on disabled node n1", "held on disabled node n1",
    ]  # fmt: skip
    story.claim(work_id)
    over = ev.SessionLost(node_id="n1", generation="1", cause="left", silent_ms=0, **BY_HAND)
    assert violations(story.tampered("node-n1", over)) == [
        "its lease belongs to a generation that is over", "held by a generation that is over",
    ]  # fmt: skip


def test_lists_are_bounded_and_counts_are_not(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FINDINGS_MAX", 2)
    candidate = story.candidate()
    assert isinstance(candidate, CandidateState)
    auditor = audited([*story.lines, *story.lines])
    assert len(auditor.violations) == 2
    assert auditor.violation_count > 2
    assert auditor.stale_count > len(auditor.stale) == 2
