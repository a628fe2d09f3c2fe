"""The client over its port: sent at most once, found by what a person says, followed to the end, checked."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from projections.rows import ArtifactRow, DeploymentRow, NodeRow, WorkRow
from schemas import subjects
from schemas.codes import Code, Refusal
from schemas.replies import Reply
from schemas.serving import Answer, Failure
from schemas.tasks.text import Embedded, EmbedRequest
from services.client.client import COMMAND_SENDINGS_MAX, Client
from services.client.wire import NoResponder, Published, Silent, Unreachable
from tests.fake_wire import ARTIFACT, PROFILE, FakeWire, deployment, node, residency, work

CANCEL = subjects.rpc_subject("work.cancel")


@pytest.fixture
def wire() -> FakeWire:
    return FakeWire()


@pytest.fixture
def client(wire: FakeWire) -> Client:
    return Client(wire, "tester")


def accepted(payload: bytes, **fields: Any) -> bytes:
    return msgspec.json.encode(Reply("accepted", json.loads(payload)["command_id"], position=7, **fields))


def hint(position: int, stage: str, event: str = "work-progressed") -> Published:
    headers = {subjects.HEADER_POSITION: str(position)}
    return Published(
        f"{subjects.EVT}.work.work0123456789.{event}", json.dumps({"stage": stage}).encode(), headers, 0, 0
    )


async def test_a_command_carries_its_actor_and_an_id(wire: FakeWire, client: Client) -> None:
    wire.answers[CANCEL] = accepted
    reply = await client.command("work.cancel", work_id="w1", reason="because")
    body = json.loads(wire.sent[0][1])
    assert (body["actor"], body["work_id"], body["reason"]) == ("tester", "w1", "because")
    assert reply.command_id == body["command_id"]
    assert reply.position == 7


async def test_silence_is_answered_by_sending_the_same_id_again(wire: FakeWire, client: Client) -> None:
    tries: list[bytes] = []

    def third_time(payload: bytes) -> bytes:
        tries.append(payload)
        if len(tries) < 3:
            raise Silent
        return accepted(payload, repeated=True)

    wire.answers[CANCEL] = third_time
    assert (await client.command("work.cancel", work_id="w1")).repeated
    assert len(set(tries)) == 1


async def test_lasting_silence_is_an_unknown_outcome_that_names_the_id(wire: FakeWire, client: Client) -> None:
    def silent(payload: bytes) -> bytes:
        raise Silent

    wire.answers[CANCEL] = silent
    with pytest.raises(Refusal) as caught:
        await client.command("work.cancel", command_id="mine", work_id="w1")
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.detail["command_id"] == "mine"
    assert "nothing was changed" not in caught.value.detail["advice"]
    assert len(wire.sent) == COMMAND_SENDINGS_MAX


@pytest.mark.parametrize("error", [NoResponder("x"), Unreachable("gone")])
async def test_no_listener_and_no_connection_are_unavailable(wire: FakeWire, client: Client, error: Exception) -> None:
    def fail(payload: bytes) -> bytes:
        raise error

    wire.answers[CANCEL] = fail
    with pytest.raises(Refusal) as caught:
        await client.command("work.cancel", work_id="w1")
    assert caught.value.code is Code.UNAVAILABLE


async def test_a_malformed_command_is_refused_before_it_is_sent(wire: FakeWire, client: Client) -> None:
    with pytest.raises(Refusal) as caught:
        await client.command("work.cancel", work_id="not a token")
    assert caught.value.code is Code.COMMAND_MALFORMED
    assert not wire.sent


async def test_a_command_that_does_not_fit_a_message_is_refused_here(wire: FakeWire, client: Client) -> None:
    files = [{"path": f"{'d' * 350}/{number}", "size": 1, "sha256": "0" * 64} for number in range(4_000)]
    with pytest.raises(Refusal) as caught:
        await client.command("artifact.register", name="big", files=files)
    assert caught.value.code is Code.MESSAGE_TOO_LARGE
    assert not wire.sent


async def test_a_rejection_is_a_value_for_command_and_raised_by_accepted(wire: FakeWire, client: Client) -> None:
    reply = Reply("rejected", "c", code=Code.WORK_ENDED, message="too late", detail={"stage": "completed"})
    wire.answers[CANCEL] = lambda payload: msgspec.json.encode(reply)
    assert (await client.command("work.cancel", work_id="w1")).outcome == "rejected"
    with pytest.raises(Refusal) as caught:
        await client.accepted("work.cancel", work_id="w1")
    assert (caught.value.code, caught.value.message) == (Code.WORK_ENDED, "too late")
    assert caught.value.detail == {"stage": "completed"}


async def test_one_takes_a_name_an_id_and_a_prefix(wire: FakeWire, client: Client) -> None:
    wire.put(deployment("aaaa1111"), deployment("aaaa2222", name="other"))
    for reference in ("search", "aaaa1111", "aaaa1"):
        assert (await client.one(DeploymentRow, reference)).id == "aaaa1111"


async def test_one_refuses_what_is_ambiguous_too_short_or_unknown(wire: FakeWire, client: Client) -> None:
    wire.put(deployment("aaaa1111"), deployment("aaaa2222", name="other"))
    for reference, code in (("aaaa", Code.CONFLICT), ("aaa", Code.UNKNOWN_STREAM), ("zzzz", Code.UNKNOWN_STREAM)):
        with pytest.raises(Refusal) as caught:
            await client.one(DeploymentRow, reference)
        assert caught.value.code is code


async def test_a_short_id_is_taken_whole(wire: FakeWire, client: Client) -> None:
    wire.put(node("n1"), node("n10"))
    assert (await client.one(NodeRow, "n1")).id == "n1"


async def test_a_name_means_what_is_not_retired(wire: FakeWire, client: Client) -> None:
    wire.put(deployment("aaaa1111", retired=True), deployment("bbbb1111"))
    assert (await client.one(DeploymentRow, "search")).id == "bbbb1111"


async def test_two_sets_of_one_name_are_ambiguous(wire: FakeWire, client: Client) -> None:
    def artifact(ident: str) -> ArtifactRow:
        return ArtifactRow(id=ident, position=1, name="m", files=1, bytes=1, verified={}, registered_at_ms=0)

    wire.rows["artifact"] = {ident: artifact(ident) for ident in ("a" * 64, "b" * 64)}
    with pytest.raises(Refusal) as caught:
        await client.one(ArtifactRow, "m")
    assert caught.value.code is Code.CONFLICT
    assert "aaaaaaaaaaaa" in caught.value.message


async def test_rows_come_in_pages_that_shrink_to_fit(wire: FakeWire, client: Client) -> None:
    wire.put(*(node(f"node-{number:04}") for number in range(1_203)))
    wire.rows_per_message = 100
    assert len(await client.rows(NodeRow)) == 1_203


async def test_waiting_tells_each_stage_once_and_in_order(wire: FakeWire, client: Client) -> None:
    wire.put(work("queued", position=1))
    wire.hints = [hint(2, "preparing"), hint(3, "loading"), hint(4, "ready")]
    looked = iter([work("queued", position=1), work("loading", position=3), work("loading", position=3),
                   work("completed", position=9)])  # fmt: skip
    wire.on_wait = lambda: wire.put(next(looked))
    told: list[str] = []
    ended = await client.wait_work("work0123456789", on_stage=told.append)
    assert ended.stage == "completed"
    assert [stage for number, stage in enumerate(told) if told[:number][-1:] != [stage]] == [
        "queued", "preparing", "loading", "ready", "completed",
    ]  # fmt: skip


async def test_waiting_goes_on_without_any_hint(wire: FakeWire, client: Client) -> None:
    wire.put(work("loading"))
    wire.on_wait = lambda: wire.put(work("failed", position=8, code="LOAD_FAILED", message="no"))
    assert (await client.wait_work("work0123456789")).code == "LOAD_FAILED"


async def test_waiting_has_an_end(wire: FakeWire, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.client.client.WAIT_MARGIN_S", -10.0)
    wire.put(work("loading"))
    with pytest.raises(Refusal) as caught:
        await client.wait_work("work0123456789")
    assert caught.value.code is Code.DEADLINE_EXCEEDED


async def test_work_that_is_not_there_is_refused(client: Client) -> None:
    with pytest.raises(Refusal) as caught:
        await client.wait_work("nothing")
    assert caught.value.code is Code.UNKNOWN_STREAM


def answering(wire: FakeWire, answer: Answer | Failure, generation: str = "3") -> None:
    wire.put(node(), deployment(), residency())
    subject = subjects.serve_subject("local", generation, "dep0123456789ab")
    wire.answers[subject] = lambda payload: msgspec.msgpack.encode(answer)


def result(**fields: Any) -> Answer:
    vectors = Embedded(
        vectors=fields.pop("vectors", bytes(16)), rows=2, dimensions=2, tokens=[1, 1], truncated=[False] * 2
    )
    source = {"artifact_id": ARTIFACT, "profile_id": PROFILE, "generation": "3", "compute_ms": 1.0}
    return Answer(vectors, **{**source, **fields})


async def test_an_invocation_goes_to_the_current_generation(wire: FakeWire, client: Client) -> None:
    answering(wire, result())
    assert (await client.invoke(deployment(), EmbedRequest(["a", "b"]))).result.rows == 2


@pytest.mark.parametrize(
    "fields", [{"artifact_id": PROFILE}, {"profile_id": ARTIFACT}, {"generation": "2"}, {"vectors": bytes(12)}]
)
async def test_an_answer_of_something_else_is_not_an_answer(
    wire: FakeWire, client: Client, fields: dict[str, Any]
) -> None:
    answering(wire, result(**fields))
    with pytest.raises(Refusal) as caught:
        await client.invoke(deployment(), EmbedRequest(["a", "b"]))
    assert caught.value.code is Code.INTERNAL_ERROR


async def test_the_workers_refusal_is_passed_on(wire: FakeWire, client: Client) -> None:
    answering(wire, Failure(Code.INPUT_TOO_LARGE, "too many items"))
    with pytest.raises(Refusal) as caught:
        await client.invoke(deployment(), EmbedRequest(["a"]))
    assert (caught.value.code, caught.value.message) == (Code.INPUT_TOO_LARGE, "too many items")


async def test_nobody_who_serves_is_not_resident(wire: FakeWire, client: Client) -> None:
    wire.put(node(), deployment())
    with pytest.raises(Refusal) as caught:
        await client.invoke(deployment(), EmbedRequest(["a"]))
    assert caught.value.code is Code.NOT_RESIDENT


async def test_the_worker_is_asked_even_where_the_log_is_behind(wire: FakeWire, client: Client) -> None:
    answering(wire, result())
    wire.put(residency("loading", generation="0"))
    assert (await client.invoke(deployment(), EmbedRequest(["a", "b"]))).result.rows == 2


async def test_another_node_of_the_deployment_is_asked_where_the_first_is_gone(wire: FakeWire, client: Client) -> None:
    both = deployment(node_ids=["gone", "local"])
    answering(wire, result())
    wire.put(node("gone"), both)
    assert (await client.invoke(both, EmbedRequest(["a", "b"]))).result.rows == 2
    with pytest.raises(Refusal) as caught:
        await client.invoke(both, EmbedRequest(["a", "b"]), node_id="gone")
    assert caught.value.code is Code.NOT_RESIDENT


async def test_rows_are_the_structs_of_their_table(wire: FakeWire, client: Client) -> None:
    wire.put(work())
    assert await client.rows(WorkRow, {"kind": "load"}) == [work()]
    assert await client.rows(WorkRow, {"kind": "probe"}) == []
