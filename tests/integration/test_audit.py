"""The audit on real servers: what was written through PostgreSQL and projected is consistent, until one tampers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from projections.project import Rows
from projections.rows import TABLES
from schemas.events import TOPIC_OF, WorkCompleted, encode_event
from schemas.queries import Query
from services.audit import AuditReport, audit, compare, read_tables, replay
from services.eventlog.migrate import migrate
from services.eventlog.port import NewEvent
from services.eventlog.postgres import PostgresLog
from services.eventlog.tail import Tail
from services.projector.projector import Projector
from services.projector.store import ViewStore
from tests.fake_wire import work as work_row
from tests.golden.record import NEWEST, digest_file, states_digest, tell
from tests.plane import control_plane
from tests.unit.domain import statements as says
from tests.unit.domain.story import Line, Story, folded

EVENTS_PER_APPEND = 7  # so that the story lies in many commits


class Told:
    """The golden story in PostgreSQL, projected."""

    def __init__(self, dsn: str, story: Story, log: PostgresLog, store: ViewStore, epoch: int) -> None:
        self.dsn, self.story, self.log, self.store, self.epoch = dsn, story, log, store, epoch

    async def project(self) -> None:
        projector, last = Projector(self.log, Tail(self.log), self.store), await self.log.last_position()
        for _ in range(last + 1):
            if projector.position == last:
                return
            await projector.step()
        raise AssertionError(f"projected only to {projector.position} of {last}")

    async def by_hand(self, statement: str, *parameters: object) -> None:
        def run() -> None:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                conn.execute(statement.encode(), parameters)

        await asyncio.to_thread(run)

    async def audited(self) -> AuditReport:
        return await audit(self.log, self.dsn)


def new_event(line: Line) -> NewEvent:
    return NewEvent(line.stream, line.version, TOPIC_OF[type(line.event)], encode_event(line.event))


@pytest.fixture
async def told(postgres_dsn: str) -> AsyncIterator[Told]:
    await asyncio.to_thread(migrate, postgres_dsn)
    log, store, story = PostgresLog(postgres_dsn), ViewStore(postgres_dsn), tell()
    epoch = await log.take_epoch("test")
    events = [new_event(line) for line in story.lines]
    for start in range(0, len(events), EVENTS_PER_APPEND):
        await log.append(events[start : start + EVENTS_PER_APPEND], [], epoch)
    made = Told(postgres_dsn, story, log, store, epoch)
    await made.project()
    yield made
    await store.close()
    await log.close()


async def test_a_log_and_its_tables_are_consistent(told: Told) -> None:
    report = await told.audited()
    assert report.consistent, report
    assert (report.violations, report.table_differences, report.stale) == ([], [], [])
    assert (report.events, report.streams) == (len(told.story.lines), len(folded(told.story.lines)))
    assert report.tables_compared == len(TABLES)
    assert len(report.rejected) == 2
    assert states_digest(folded(told.story.lines)) == digest_file(NEWEST).read_text().strip()


async def test_the_tables_may_be_behind_or_not_there(told: Told) -> None:
    last = await told.log.last_position()
    await told.store.prepare(rebuild=True)
    empty = await told.audited()
    assert empty.consistent
    assert (empty.position, empty.tables_compared) == (last, len(TABLES))
    await told.by_hand("DROP SCHEMA view CASCADE")
    without = await told.audited()
    assert (without.consistent, without.tables_compared) == (True, 0)


async def test_a_stale_event_put_in_by_hand_is_listed_and_changes_nothing(told: Told) -> None:
    completed = next(line for line in told.story.lines if isinstance(line.event, WorkCompleted))
    version = told.story.world.versions[completed.stream] + 1
    await told.by_hand(
        "INSERT INTO tenure.stored_events (originator_id, originator_version, topic, state) VALUES (%s, %s, %s, %s)",
        completed.stream, version, "work.completed.v1", encode_event(completed.event),
    )  # fmt: skip
    await told.project()
    report = await told.audited()
    assert report.consistent, report
    assert [(finding.position, finding.stream) for finding in report.stale] == [(report.position, completed.stream)]
    assert "WORK_ENDED" in report.stale[0].what


async def test_an_event_that_was_changed_is_a_violation(told: Told) -> None:
    await told.by_hand(
        "UPDATE tenure.stored_events SET state = convert_to(replace(convert_from(state, 'UTF8'), %s, %s), 'UTF8') "
        "WHERE topic = 'work.completed.v1'",
        "900.0", "100.0",
    )  # fmt: skip
    report = await told.audited()
    assert not report.consistent
    assert any("SIGNATURE_INVALID" in finding.what for finding in report.violations)


async def test_an_event_that_was_deleted_is_a_violation(told: Told) -> None:
    await told.by_hand("DELETE FROM tenure.stored_events WHERE topic = 'approval.granted.v1'")
    report = await told.audited()
    found = {finding.what for finding in report.violations}
    assert "deployed without a standing approval" in found
    assert "version 3 after 1" in found


@pytest.mark.parametrize(
    ("statement", "difference"),
    [
        ("UPDATE view.candidate SET production = true", "the table has other values than the log"),
        ("UPDATE view.residency SET state = 'resident'", "the table has other values than the log"),
        ("UPDATE view.work SET result = '{}' WHERE kind = 'probe'", "the table has other values than the log"),
        ("DELETE FROM view.node", "not in the table"),
        ("INSERT INTO view.candidate SELECT 'forged', position, digest, artifact_id, profile_id, fingerprint, node_id, "
         "probe_id, adapter, task, status, production, approved_by, approved_at_ms, created_at_ms FROM view.candidate "
         "LIMIT 1",
         "not in the log"),
    ],
)  # fmt: skip
async def test_a_row_that_was_changed_by_hand_is_a_difference(told: Told, statement: str, difference: str) -> None:
    await told.by_hand(statement)
    report = await told.audited()
    assert not report.consistent
    assert report.violations == []
    assert report.table_differences
    assert all(difference in text for text in report.table_differences)


async def test_what_a_running_control_plane_writes_is_consistent(postgres_dsn: str, nats_url: str) -> None:
    async with control_plane(postgres_dsn, nats_url) as plane:
        await plane.command("node.enrol", node_id="n1", credential_sha256="a" * 64)
        reply = await plane.command("node.disable", node_id="n1", reason="maintenance")
        await plane.reader.answer("node", Query(min_position=reply.position, wait_ms=10_000))
        report = await replay(postgres_dsn)
    assert report.consistent, report
    assert report.position == reply.position


async def test_refused_evidence_about_unknown_work_moves_its_nodes_row(told: Told) -> None:
    """It counts without changing the state; projector and audit have to agree about the row's position."""
    told.story.say("unknown", says.verified(), generation="3")
    await told.log.append([new_event(told.story.lines[-1])], [], told.epoch)
    await told.project()
    report = await told.audited()
    assert report.consistent, report.table_differences


async def test_a_character_the_tables_cannot_hold_does_not_stop_them(postgres_dsn: str) -> None:
    """NUL is a character of JSON and of Python's text, and none of PostgreSQL's."""
    store = ViewStore(postgres_dsn)
    begun = await store.prepare()
    text = 'a\0b \\u0000 \\\\\0 "\0"'
    row = work_row(message=text, result={text: [text]})
    rows: Rows = {("work", row.id): row}
    assert await store.write(rows, begun, 7)
    read = read_tables(postgres_dsn)
    assert read is not None
    assert read[0] == 7
    assert read[1]["work", row.id]["message"] == text.replace("\0", "\ufffd")
    assert compare(rows, read[1]) == []
    await store.close()
