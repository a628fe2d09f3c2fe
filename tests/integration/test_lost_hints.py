"""Wake-ups are hints: what is never told, told wrongly or told too early is found all the same, by looking.

Events are put into the log without a word to anybody, as if each notification had been lost between two looks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from schemas import subjects
from schemas.events import NodeEnrolled, encode_event
from schemas.queries import Query
from services.eventlog.port import NewEvent
from services.eventlog.postgres import PostgresLog
from tests.integration.test_control_path import events_equal_log
from tests.plane import ControlPlane, control_plane

SHA = "ab" * 32
WAIT_MS = 10_000
WRONG = (b"999999999", b"0", b"-1", b"not a number", b"")


@pytest.fixture
async def plane(postgres_dsn: str, nats_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(postgres_dsn, nats_url) as made:
        yield made


async def unannounced(plane: ControlPlane, node_id: str) -> int:
    """Append an event as the active writer would, telling nobody; its position."""
    event = NodeEnrolled(at_ms=1, command_id=f"c-{node_id}", actor="t", node_id=node_id, credential_sha256=SHA)
    log = PostgresLog(plane.dsn)
    try:
        new = NewEvent(f"node-{node_id}", 1, "node.enrolled.v1", encode_event(event))
        (position,) = await log.append([new], [], plane.control.leadership.epoch)
    finally:
        await log.close()
    return position


async def seen(plane: ControlPlane, node_id: str, position: int) -> None:
    """In the tables and on EVENTS."""
    found = await plane.reader.answer("node", Query(where={"id": node_id}, min_position=position, wait_ms=WAIT_MS))
    assert [row["id"] for row in found.rows] == [node_id]
    await events_equal_log(plane)


async def test_a_wake_up_that_was_lost_is_made_up_for_by_looking(plane: ControlPlane) -> None:
    told = await plane.command("node.enrol", node_id="told", credential_sha256=SHA)
    await seen(plane, "told", told.position or 0)
    await seen(plane, "untold", await unannounced(plane, "untold"))


async def test_a_wake_up_that_says_something_wrong_hides_nothing(plane: ControlPlane) -> None:
    """Too far ahead, behind, or no position at all: the log is what is read."""
    for number, wrong in enumerate(WRONG):
        await plane.nc.publish(subjects.WAKE, wrong)
        await plane.nc.publish(subjects.WAKE_VIEW, wrong)
        await seen(plane, f"n{number}", await unannounced(plane, f"n{number}"))


async def test_a_wake_up_that_comes_before_its_event_is_only_early(plane: ControlPlane) -> None:
    position = await unannounced(plane, "first")
    await plane.nc.publish(subjects.WAKE, str(position + 1).encode())
    await seen(plane, "first", position)
    await seen(plane, "second", await unannounced(plane, "second"))
