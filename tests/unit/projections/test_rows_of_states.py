"""Which row each state stands for, and which of two rows for one thing wins."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from domain.circuits import BACKOFF_MS_MIN, ENDS_MAX
from domain.folding.fold import fold
from domain.folding.states import State
from projections.project import Rows, project
from projections.rows import TABLES, ResidencyRow, Row, WorkRow
from schemas import commands as c
from schemas import evidence as se
from schemas.artifacts import manifest_digest
from schemas.codes import Code
from schemas.profiles import profile_digest
from tests.unit.domain import statements as says
from tests.unit.domain.story import FILES, PROFILE, Line, Story
from tests.unit.domain.test_admission import candidate_of

EMPTY = ResidencyRow(
    id="d.n1", position=0, deployment_id="d", node_id="n1", state="absent", generation="0", work_id="", cause="",
    changed_at_ms=0,
)  # fmt: skip


def projected(lines: list[Line], rows: Rows | None = None) -> Rows:
    """The rows of a log, as one batch."""
    rows = {} if rows is None else rows
    states: dict[str, State] = {}
    for line in lines:
        before = states.get(line.stream)
        after, reason = fold(before, line.event)
        if reason is None and after is not None:
            states[line.stream] = after
            project(before, after, line.position, rows)
    return rows


def plain(row: Row) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(row)
    return made


@pytest.fixture
def story() -> Story:
    return Story()


def test_an_artifact(story: Story) -> None:
    story.enrol()
    story.start_worker()
    artifact_id = story.verified_artifact()
    assert plain(projected(story.lines)["artifact", artifact_id]) == {
        "id": manifest_digest(FILES), "position": len(story.lines), "name": "mini", "files": 2, "bytes": 1_100,
        "verified": {"n1": "models/mini"}, "registered_at_ms": 1_000_000,
    }  # fmt: skip


def test_a_profile(story: Story) -> None:
    story.probe()
    row = plain(projected(story.lines)["profile", profile_digest(PROFILE)])
    assert (row["adapter"], row["task"], row["assessment_id"]) == (PROFILE.adapter, PROFILE.task, "id0002")
    assert msgspec.convert(row["profile"], type(PROFILE)) == PROFILE


def test_a_node_before_with_and_after_its_worker(story: Story) -> None:
    story.enrol()
    row = plain(projected(story.lines)["node", "n1"])
    assert (row["session"], row["generation"], row["fingerprint"], row["environment"]) == ("none", "0", None, {})
    story.wait(5)
    story.start_worker()
    row = plain(projected(story.lines)["node", "n1"])
    assert (row["session"], row["generation"], row["boot_id"], row["changed_at_ms"]) == (
        "alive",
        "1",
        "boot1",
        1_000_005,
    )
    assert row["environment"]["python"] == "3.11.9"
    story.accept(c.DisableNode, node_id="n1")
    row = plain(projected(story.lines)["node", "n1"])
    assert (row["enabled"], row["session"]) == (False, "lost")
    assert "session_keys" not in row
    assert "credential_sha256" not in row


def test_work_through_its_life(story: Story) -> None:
    work_id = story.probe()

    def row() -> dict[str, Any]:
        return plain(projected(story.lines)["work", work_id])

    queued = row()
    assert (queued["kind"], queued["stage"], queued["lease_until_ms"], queued["attempt"]) == (
        "probe",
        "queued",
        None,
        0,
    )
    assert (queued["artifact_id"], queued["profile_id"]) == (manifest_digest(FILES), profile_digest(PROFILE))
    assert (queued["deployment_id"], queued["adapter"], queued["result"], queued["code"]) == (None, None, {}, None)
    order = story.claim(work_id)
    leased = row()
    assert (leased["stage"], leased["generation"], leased["lease_until_ms"]) == ("preparing", "1", order.until_ms)
    assert leased["deadline_ms"] == order.deadline_ms
    story.accept(c.CancelWork, work_id=work_id)
    assert row()["cancel_requested"]
    story.say(work_id, se.Progress("loading"), attempt=9)
    assert (row()["rejected_evidence"], row()["stage"]) == (1, "preparing")
    story.wait(7)
    story.say(work_id, says.failed(Code.OUT_OF_MEMORY, "short"))
    failed = row()
    assert (failed["stage"], failed["code"], failed["message"]) == ("failed", "OUT_OF_MEMORY", "short")
    assert (failed["lease_until_ms"], failed["ended_at_ms"]) == (None, 1_000_007)


def test_the_adapter_of_an_assessment_and_the_deployment_of_a_job(story: Story) -> None:
    deployment_id = story.deployment()
    load_id = story.job(deployment_id, "load")
    rows = projected(story.lines)
    assert plain(rows["work", "id0002"])["adapter"] == "sentence_transformers"
    assert plain(rows["work", "id0002"])["result"]["type"] == "assessed"
    job = plain(rows["work", load_id])
    assert (job["kind"], job["deployment_id"], job["profile_id"]) == ("load", deployment_id, profile_digest(PROFILE))


def test_a_candidate_before_and_after_its_approval(story: Story) -> None:
    candidate = story.candidate()
    key = ("candidate", candidate.candidate_id)
    row = plain(projected(story.lines)[key])
    assert (row["status"], row["production"], row["approved_by"], row["probe_id"]) == (
        "lab_ready", False, None, candidate.candidate_id,
    )  # fmt: skip
    story.wait(3)
    story.approve(candidate)
    row = plain(projected(story.lines)[key])
    assert (row["approved_by"], row["approved_at_ms"], row["digest"]) == ("pat", 1_000_003, candidate.digest)
    story.accept(c.RevokeApproval, candidate_id=candidate.candidate_id)
    row = plain(projected(story.lines)[key])
    assert (row["approved_by"], row["approved_at_ms"]) == (None, None)


def test_a_deployment_and_its_residency(story: Story) -> None:
    deployment_id = story.resident()
    rows = projected(story.lines)
    residency = plain(rows["residency", f"{deployment_id}.n1"])
    assert (residency["state"], residency["generation"], residency["cause"]) == ("resident", "1", "loaded and healthy")
    assert residency["position"] == len(story.lines)
    deployment = plain(rows["deployment", deployment_id])
    assert (deployment["name"], deployment["node_ids"], deployment["retired"]) == ("search", ["n1"], False)
    story.finish(story.job(deployment_id, "unload"), says.unloaded())
    story.accept(c.RetireDeployment, deployment_id=deployment_id)
    rows = projected(story.lines)
    assert plain(rows["deployment", deployment_id])["retired"]
    assert plain(rows["residency", f"{deployment_id}.n1"])["state"] == "absent"
    assert plain(rows["residency", f"{deployment_id}.n1"])["position"] == len(story.lines) - 1


def test_a_circuit_is_seen_with_its_residency_and_goes_with_it(story: Story) -> None:
    deployment_id = story.deployment()
    key = ("residency", f"{deployment_id}.n1")
    for _ in range(ENDS_MAX):
        assert plain(projected(story.lines).get(key) or EMPTY)["circuit_until_ms"] is None
        story.finish(story.job(deployment_id, "load"), says.failed(Code.OUT_OF_MEMORY, "short"))
    row = plain(projected(story.lines)[key])
    assert row["circuit_until_ms"] == story.world.now_ms + BACKOFF_MS_MIN
    assert (row["circuit_cause"], row["circuit_openings"]) == ("OUT_OF_MEMORY: short", 1)
    assert (row["state"], row["position"]) == ("failed", len(story.lines))
    story.accept(c.CloseCircuit, deployment_id=deployment_id, node_id="n1")
    row = plain(projected(story.lines)[key])
    assert (row["circuit_until_ms"], row["circuit_cause"], row["circuit_openings"]) == (None, None, None)
    assert row["position"] == len(story.lines)


def test_a_reservation_is_seen_with_its_lease_and_then_with_its_residency(story: Story) -> None:
    candidate = candidate_of(story, 40_000)
    deployment_id = story.deploy(candidate)
    work_id = story.job(deployment_id, "load")

    def seen() -> tuple[Any, ...]:
        rows = projected(story.lines)
        work, held = rows["work", work_id], rows.get(("residency", f"{deployment_id}.n1"), EMPTY)
        assert isinstance(work, WorkRow)
        assert isinstance(held, ResidencyRow)
        return work.reserved_bytes, work.reserved_device, held.reserved_bytes, held.reserved_device

    assert seen() == (None, None, None, None)
    story.claim(work_id)
    assert seen() == (40_000, 0, None, None)
    story.say(work_id, says.loaded(story.fingerprint()))
    assert seen() == (None, None, 40_000, 0)
    story.finish(story.job(deployment_id, "unload"), says.unloaded())
    assert seen() == (None, None, None, None)


def test_the_last_row_of_a_batch_wins_whatever_the_batches(story: Story) -> None:
    story.resident()
    story.start_worker()
    whole = projected(story.lines)
    for cut in range(len(story.lines)):
        rows = projected(story.lines[:cut])
        assert projected(story.lines, rows) == whole


def test_only_the_residency_that_changed_is_written(story: Story) -> None:
    candidate = story.candidate()
    story.approve(candidate)
    deployment_id = story.deploy(candidate)
    story.load(deployment_id)
    before = story.world.states[f"deployment-{deployment_id}"]
    story.accept(c.RetireDeployment, deployment_id=story.deploy(candidate, "other"))
    rows: Rows = {}
    project(before, before, 99, rows)  # type: ignore[arg-type]
    assert set(rows) == {("deployment", deployment_id)}


def test_every_table_gets_rows_with_every_column(story: Story) -> None:
    story.resident()
    rows = projected(story.lines)
    assert {table for table, _ in rows} == set(TABLES)
    for (table, ident), row in rows.items():
        assert type(row) is TABLES[table]
        assert row.id == ident
        assert row.position >= 1
