"""Commands through the real path: NATS in, PostgreSQL, EVENTS and tables out."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from schemas import subjects
from schemas.codes import Code
from schemas.commands import BY_SUBJECT
from schemas.queries import Query
from services.projector.store import ViewStore
from tests.fake_wire import work as work_row
from tests.plane import ControlPlane, control_plane, eventually

SHA = "ab" * 32


@pytest.fixture
async def plane(postgres_dsn: str, nats_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(postgres_dsn, nats_url) as made:
        yield made


async def test_a_command_is_answered_after_it_is_durable_and_becomes_a_row_and_a_message(plane: ControlPlane) -> None:
    reply = await plane.command("node.enrol", node_id="n1", credential_sha256=SHA)
    assert (reply.outcome, reply.result) == ("accepted", {"node_id": "n1"})
    row = (await plane.log.read(0, 10))[-1]
    assert (row.stream, row.topic, row.position) == ("node-n1", "node.enrolled.v1", reply.position)
    found = await plane.reader.answer("node", Query(id="n1", min_position=reply.position))
    assert found.rows[0]["id"] == "n1"
    assert found.position >= (reply.position or 0)

    async def published() -> bool:
        info = await plane.nc.jetstream().stream_info(subjects.STREAM_EVENTS)
        return info.state.messages == 1

    await eventually(published, "the event is on EVENTS")
    message = await plane.nc.jetstream().get_msg(subjects.STREAM_EVENTS, 1)
    assert message.subject == "tenure.evt.v1.node.n1.node-enrolled"
    assert message.data == row.state
    assert (message.headers or {})[subjects.HEADER_POSITION] == str(reply.position)


async def test_the_same_command_twice_has_one_outcome(plane: ControlPlane) -> None:
    body = json.dumps({"command_id": "c1", "actor": "t", "node_id": "n1", "credential_sha256": SHA}).encode()
    first, second = await plane.send("node.enrol", body), await plane.send("node.enrol", body)
    assert (first.outcome, first.repeated) == ("accepted", False)
    assert (second.outcome, second.repeated, second.position) == ("accepted", True, first.position)
    at_once = await asyncio.gather(*(plane.send("node.enrol", body.replace(b"c1", b"c2")) for _ in range(20)))
    assert sum(not reply.repeated for reply in at_once) == 1
    other = await plane.send("node.enrol", body.replace(b'"n1"', b'"n2"'))
    assert other.code is Code.DUPLICATE_COMMAND


async def test_an_outcome_survives_the_writer(plane: ControlPlane) -> None:
    body = json.dumps({"command_id": "c1", "actor": "t", "node_id": "n1", "credential_sha256": SHA}).encode()
    first = await plane.send("node.enrol", body)
    await plane.stop_writer()
    await plane.start_writer()
    second = await plane.send("node.enrol", body)
    assert (second.repeated, second.position) == (True, first.position)
    assert (await plane.command("node.enrol", node_id="n1", credential_sha256="cd" * 32)).code is Code.NAME_TAKEN


async def test_a_rejection_has_a_receipt_too(plane: ControlPlane) -> None:
    body = json.dumps({"command_id": "c1", "actor": "t", "node_id": "ghost"}).encode()
    first = await plane.send("node.enable", body)
    assert first.code is Code.UNKNOWN_STREAM
    assert first.advice
    assert (await plane.send("node.enable", body)).repeated
    receipt = await plane.reader.answer("receipt", Query(id="c1"))
    assert receipt.rows[0]["code"] == "UNKNOWN_STREAM"


async def test_publish_and_forget_reaches_the_log(plane: ControlPlane) -> None:
    js = plane.nc.jetstream()
    body = {"command_id": "c9", "actor": "t", "node_id": "n9", "credential_sha256": SHA}
    await js.publish("tenure.cmd.v1.node.enrol", msgspec.json.encode(body))

    async def receipted() -> bool:
        return "c9" in await plane.log.receipts(["c9"])

    await eventually(receipted, "the durable command has a receipt")

    async def taken() -> bool:
        return (await js.stream_info(subjects.STREAM_COMMANDS)).state.messages == 0

    await eventually(taken, "the command left COMMANDS")


async def test_a_durable_command_waits_for_a_writer(plane: ControlPlane) -> None:
    await plane.stop_writer()
    body = {"command_id": "c9", "actor": "t", "node_id": "n9", "credential_sha256": SHA}
    await plane.nc.jetstream().publish("tenure.cmd.v1.node.enrol", msgspec.json.encode(body))
    await plane.start_writer()

    async def receipted() -> bool:
        return "c9" in await plane.log.receipts(["c9"])

    await eventually(receipted, "the command was carried out by the next writer")


async def test_random_bytes_on_every_subject_change_nothing(plane: ControlPlane) -> None:
    seeded = random.Random(7)
    names = [*BY_SUBJECT, "no.such", "lease", "node.enrol.more"]
    for name in names:
        for body in (seeded.randbytes(200), b"", b"{}", b"[" * 5_000, b'{"command_id":"x"}', b"null", b"\xff\xfe"):
            reply = await plane.send(name, body)
            assert reply.outcome == "rejected"
            assert reply.code in (Code.COMMAND_MALFORMED, Code.COMMAND_UNKNOWN)
        await plane.nc.jetstream().publish(f"tenure.cmd.v1.{name}", seeded.randbytes(300))
    for subject in ("tenure.evidence.v1.n.1.w", "tenure.evidence.v1.x"):
        await plane.nc.jetstream().publish(subject, os.urandom(300))
    reply = await plane.command("node.enrol", node_id="n1", credential_sha256=SHA)
    assert reply.outcome == "accepted"
    assert len(await plane.log.read(0, 100)) == 1


async def test_secrets_are_not_taken_from_the_durable_stream(plane: ControlPlane) -> None:
    body = {"command_id": "c1", "actor": "t", "work_id": "w", "node_id": "n", "generation": "1"}
    await plane.nc.jetstream().publish("tenure.cmd.v1.lease.claim", msgspec.json.encode(body))

    async def taken() -> bool:
        return (await plane.nc.jetstream().stream_info(subjects.STREAM_COMMANDS)).state.messages == 0

    await eventually(taken, "the refused command left the stream")
    assert await plane.log.receipts(["c1"]) == {}


async def test_many_commands_at_once_commit_in_groups_and_all_arrive(plane: ControlPlane) -> None:
    replies = await asyncio.gather(
        *(plane.command("node.enrol", node_id=f"n{number}", credential_sha256=SHA) for number in range(500))
    )
    assert {reply.outcome for reply in replies} == {"accepted"}
    assert len({reply.position for reply in replies}) == 500
    assert plane.writer.commits < 250
    last = max(reply.position or 0 for reply in replies)
    found = await plane.reader.answer("node", Query(limit=500, min_position=last, wait_ms=10_000))
    assert len(found.rows) == 500
    await events_equal_log(plane)


async def test_a_wiped_stream_is_filled_again_from_the_log(plane: ControlPlane) -> None:
    for number in range(20):
        await plane.command("node.enrol", node_id=f"n{number}", credential_sha256=SHA)
    await events_equal_log(plane)
    await plane.nc.jetstream().delete_stream(subjects.STREAM_EVENTS)
    await plane.command("node.enrol", node_id="after", credential_sha256=SHA)
    await events_equal_log(plane)


async def test_a_purged_stream_is_filled_again(plane: ControlPlane) -> None:
    for number in range(20):
        await plane.command("node.enrol", node_id=f"n{number}", credential_sha256=SHA)
    await events_equal_log(plane)
    await plane.nc.jetstream().purge_stream(subjects.STREAM_EVENTS)
    await plane.command("node.enrol", node_id="after", credential_sha256=SHA)
    await events_equal_log(plane)


async def test_a_relay_that_stopped_goes_on_where_the_stream_stands(plane: ControlPlane) -> None:
    await plane.command("node.enrol", node_id="n1", credential_sha256=SHA)
    await events_equal_log(plane)
    await plane.cancel("relay")
    for number in range(2, 30):
        await plane.command("node.enrol", node_id=f"n{number}", credential_sha256=SHA)
    plane.start_relay()
    await events_equal_log(plane)


async def test_two_relays_make_one_stream(plane: ControlPlane) -> None:
    first = plane.tasks.pop("relay")
    plane.start_relay()
    await asyncio.gather(
        *(plane.command("node.enrol", node_id=f"n{number}", credential_sha256=SHA) for number in range(200))
    )
    await events_equal_log(plane)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_tables_are_rebuilt_to_the_same_rows(plane: ControlPlane) -> None:
    for number in range(10):
        reply = await plane.command("node.enrol", node_id=f"n{number}", credential_sha256=SHA)
    await plane.command("node.disable", node_id="n3")
    reply = await plane.command("node.disable", node_id="n4")
    before = (await plane.reader.answer("node", Query(min_position=reply.position))).rows
    await plane.cancel("projector")
    await plane.store.prepare(rebuild=True)
    plane.start_projector()
    after = (await plane.reader.answer("node", Query(min_position=reply.position, wait_ms=10_000))).rows
    assert after == before
    assert [row["id"] for row in after if not row["enabled"]] == ["n3", "n4"]


async def test_another_release_makes_the_tables_anew(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns can be the same and rows not: what they are made by decides."""
    store = ViewStore(postgres_dsn)
    begun = await store.prepare()
    assert await store.write({("work", "w"): work_row(ident="w")}, begun, 9)
    assert await store.prepare() == 9
    monkeypatch.setattr("services.projector.store.rows_digest", lambda: "of another release")
    assert await store.prepare() == 0
    await store.close()


async def test_queries_refuse_what_they_do_not_know(plane: ControlPlane) -> None:
    assert (await plane.reader.answer("secrets", Query())).code is Code.UNKNOWN_STREAM
    assert (await plane.reader.answer("node", Query(where={"x; drop table": "1"}))).code is Code.COMMAND_MALFORMED
    for nothing in (Query(where={"id": "a\0b"}), Query(id="a\0bcd"), Query(after="\0")):
        assert (await plane.reader.answer("node", nothing)).code is Code.COMMAND_MALFORMED
    late = await plane.reader.answer("node", Query(min_position=10_000, wait_ms=50))
    assert late.code is Code.UNAVAILABLE


async def events_equal_log(plane: ControlPlane) -> None:
    """EVENTS holds each position of the log once, in order, with the same bytes."""
    js = plane.nc.jetstream()

    async def complete() -> bool:
        try:
            info = await js.stream_info(subjects.STREAM_EVENTS)
            if info.state.messages == 0:
                return False
            last = await js.get_msg(subjects.STREAM_EVENTS, info.state.last_seq)
        except Exception:  # noqa: BLE001 - the stream is being made again
            return False
        return int((last.headers or {})[subjects.HEADER_POSITION]) == await plane.log.last_position()

    await eventually(complete, "EVENTS has caught up with the log")
    rows = await plane.log.read(0, 10_000)

    async def whole() -> bool:  # a lost beginning is noticed at the relay's next look
        return (await js.stream_info(subjects.STREAM_EVENTS)).state.messages >= len(rows)

    await eventually(whole, "EVENTS has every event")
    info = await js.stream_info(subjects.STREAM_EVENTS)
    assert info.state.messages == len(rows)
    previous = 0
    for row, sequence in zip(rows, range(info.state.first_seq, info.state.last_seq + 1), strict=True):
        message = await js.get_msg(subjects.STREAM_EVENTS, sequence)
        headers = message.headers or {}
        assert int(headers[subjects.HEADER_POSITION]) == row.position
        assert int(headers[subjects.HEADER_PREVIOUS]) == previous
        assert message.data == row.state
        previous = row.position


async def test_a_request_without_a_reply_subject_ends_nothing(plane: ControlPlane) -> None:
    body = {"command_id": "unheard", "actor": "a", "node_id": "n9", "credential_sha256": SHA}
    await plane.nc.publish("tenure.rpc.v1.node.enrol", msgspec.json.encode(body))
    await plane.nc.publish("tenure.rpc.v1.node.enrol", b"no json")
    reply = await plane.command("node.enrol", node_id="n1", credential_sha256=SHA)
    assert reply.outcome == "accepted"
    assert (await plane.send("node.enrol", msgspec.json.encode(body))).repeated
