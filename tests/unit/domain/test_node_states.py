"""Nodes: enrolled once, taken out with everything on them, and taken in again with nothing."""

from __future__ import annotations

from schemas import commands as c
from schemas import events as ev
from schemas.codes import Code
from tests.unit.domain import statements as says
from tests.unit.domain.story import Story


def test_a_node_is_enrolled_once_with_one_credential(story: Story) -> None:
    story.enrol()
    before = len(story.lines)
    story.enrol()
    assert len(story.lines) == before
    refused = story.refuse(c.EnrolNode, node_id="n1", credential_sha256="c" * 64)
    assert refused.code is Code.NAME_TAKEN


def test_unknown_nodes_are_neither_enabled_nor_disabled(story: Story) -> None:
    assert story.refuse(c.EnableNode, node_id="ghost").code is Code.UNKNOWN_STREAM
    assert story.refuse(c.DisableNode, node_id="ghost").code is Code.UNKNOWN_STREAM


def test_disabling_and_enabling_again_change_nothing(story: Story) -> None:
    story.enrol()
    before = len(story.lines)
    story.accept(c.EnableNode, node_id="n1")
    assert len(story.lines) == before
    story.accept(c.DisableNode, node_id="n1")
    story.accept(c.DisableNode, node_id="n1")
    assert len(story.lines) == before + 1


def test_a_disabled_node_has_no_open_work_and_holds_nothing(story: Story) -> None:
    first = story.resident()
    artifact_id = story.verified_artifact()
    place = {"artifact_id": artifact_id, "node_id": "n1", "location": "models/mini"}
    queued, leased = (story.work_for(c.VerifyArtifact, **place) for _ in range(2))
    story.claim(leased)
    drain = story.job(first, "drain")
    story.claim(drain)
    story.accept(c.DisableNode, node_id="n1", reason="maintenance")
    for work_id in (queued, leased, drain):
        work = story.work(work_id)
        assert (work.stage, work.code, work.lease) == ("failed", Code.NODE_DISABLED, None)
        assert work.message == "maintenance"
    assert story.residency(first) == "lost"
    assert story.node().session == "lost"
    assert story.world.fleet.holders_of("n1") == []
    assert story.world.fleet.work_of("n1") == []


def test_loads_and_unloads_on_a_disabled_node_have_failed(story: Story) -> None:
    candidate = story.candidate()
    story.approve(candidate)
    loading, unloading = story.deploy(candidate, "one"), story.deploy(candidate, "two")
    story.load(unloading)
    story.claim(story.job(unloading, "unload"))
    story.job(loading, "load")
    story.accept(c.DisableNode, node_id="n1")
    assert story.residency(loading) == "failed"
    assert story.residency(unloading) == "failed"


def test_nothing_is_claimed_or_said_on_a_disabled_node(story: Story) -> None:
    work_id = story.probe()
    story.claim(work_id)
    story.accept(c.DisableNode, node_id="n1")
    refused = story.refuse(c.ClaimLease, work_id=work_id, node_id="n1", generation="1")
    assert refused.code is Code.NODE_DISABLED
    assert story.say(work_id, says.probed(story.fingerprint())).result["reason"] == "WORK_ENDED"
    assert not story.events(ev.CandidateCreated)


def test_an_enabled_node_waits_for_a_new_worker(story: Story) -> None:
    deployment_id = story.resident()
    story.accept(c.DisableNode, node_id="n1")
    before = len(story.lines)
    story.accept(c.LoseSession, node_id="n1", generation="1", silent_ms=20_000)
    assert len(story.lines) == before
    story.accept(c.EnableNode, node_id="n1")
    refused = story.refuse(c.RequestJob, deployment_id=deployment_id, node_id="n1", verb="load")
    assert refused.code is Code.NODE_ABSENT
    assert story.start_worker() == "2"
    story.load(deployment_id)
