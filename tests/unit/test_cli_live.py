"""The truth table of `ps`: nothing but the current owner's exact word makes a deployment loaded."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json, structs

from projections.rows import NodeRow, ResidencyRow
from schemas.codes import Code
from schemas.live import LiveAnswer
from schemas.queries import QueryReply
from schemas.replies import Reply
from services.cli.look.ps import cells, circuit_word, holdings, why
from services.cli.serve.circuit import close
from services.client import Client
from services.client.live import Holding, holding
from services.client.silence import Silence
from tests.fake_wire import FakeWire, deployment, entry, live_answer, node, residency

OTHER = "e" * 64


def held(answer: LiveAnswer | None, the_node: NodeRow | None = None, log: ResidencyRow | None = None) -> Holding:
    return holding(deployment(), "local", the_node or node(), log or residency(), answer, now_ms=61_000)


def test_the_exact_word_of_the_current_generation_is_loaded() -> None:
    now = held(live_answer(entry()))
    assert now.state == "loaded"
    assert (now.pid, now.generation, now.invocations, now.in_flight) == (4_242, "3", 17, 1)
    assert (now.since_ms, now.process_bytes) == (5_000, 123_456_789)


def test_the_log_alone_never_makes_it_loaded() -> None:
    now = held(None, log=residency("resident"))
    assert (now.state, now.log_state) == ("unknown", "resident")
    assert now.pid is None
    assert now.generation is None


def test_silence_says_for_how_long_the_session_has_been_over() -> None:
    now = held(None, node(session="lost", changed_at_ms=1_000))
    assert (now.state, now.silent_ms) == ("unknown", 60_000)
    assert why(now) == "the worker does not answer, silent for 1m 0s; session lost"
    assert held(None).silent_ms is None
    assert why(held(None)) == "the worker does not answer; session alive"


@pytest.mark.parametrize("session", ["alive", "lost"])
def test_silence_counts_from_the_last_heartbeat_of_the_owner(session: str) -> None:
    """Before the log has anything to say of it, and after."""
    the_node = node(session=session, changed_at_ms=1_000)
    now = holding(deployment(), "local", the_node, residency(), None, 61_000, Silence("local", "3", 2_500))
    assert (now.state, now.silent_ms) == ("unknown", 2_500)
    assert why(now) == f"the worker does not answer, silent for 2.5 s; session {session}"
    older = holding(deployment(), "local", the_node, residency(), None, 61_000, Silence("local", "2", 10))
    assert older.silent_ms == (60_000 if session == "lost" else None)
    told = holding(deployment(), "local", the_node, residency(), live_answer(entry()), 61_000, Silence("local", "3", 9))
    assert told.silent_ms is None


@pytest.mark.parametrize("generation", ["2", "4"])
def test_another_generation_is_not_the_owner(generation: str) -> None:
    now = held(live_answer(entry(generation=generation), generation=generation))
    assert now.state == "unknown"
    assert generation in now.reason
    assert now.pid is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("artifact_id", OTHER), ("profile_id", OTHER), ("fingerprint", OTHER), ("generation", "2")],
)
def test_whatever_differs_from_what_was_deployed_is_a_mismatch(field: str, value: str) -> None:
    now = held(live_answer(entry(**{field: value})))
    assert now.state == "mismatch"
    assert field.removesuffix("_id") in now.reason


def test_two_entries_of_one_deployment_are_a_mismatch() -> None:
    assert held(live_answer(entry(), entry())).state == "mismatch"


@pytest.mark.parametrize("state", ["loading", "draining", "unloading"])
def test_what_is_on_its_way_is_said_as_it_is(state: Any) -> None:
    assert held(live_answer(entry(state=state))).state == state


def test_a_worker_that_stopped_itself_serves_nothing() -> None:
    assert held(live_answer(entry(), serving=False)).state == "not_serving"


def test_what_the_worker_does_not_list_is_absent_whatever_the_log_says() -> None:
    now = held(live_answer(entry(deployment_id="another")), log=residency("resident"))
    assert (now.state, now.log_state) == ("absent", "resident")
    assert why(now) == "the worker does not hold it"


def test_a_node_that_is_not_enrolled_is_unknown() -> None:
    now = holding(deployment(), "gone", None, None, live_answer(entry()), now_ms=0)
    assert (now.state, now.log_state) == ("unknown", "absent")


async def test_ps_hears_the_current_generation_out_where_an_old_one_answers_first() -> None:
    wire = FakeWire()
    wire.put(node(), deployment(), residency())
    wire.live["local"] = [live_answer(generation="2"), live_answer(entry())]
    (now,) = await holdings(Client(wire, "test"))
    assert now.state == "loaded"


async def test_ps_asks_each_node_and_shows_silence() -> None:
    wire = FakeWire()
    wire.put(node(), node("other"), deployment(node_ids=["local", "other"]), residency())
    wire.live["local"] = [live_answer(entry())]
    found = await holdings(Client(wire, "test"))
    assert [(each.node_id, each.state) for each in found] == [("local", "loaded"), ("other", "unknown")]
    assert cells(found[1])[4:6] == ("unknown", "absent")
    assert found[1].silent_ms is None  # the query service has not heard it either
    rows = [{"id": "local", "generation": "3", "silent_ms": 1}, {"id": "other", "generation": "3", "silent_ms": 900}]
    wire.answers["tenure.query.v1.silence"] = lambda payload: json.encode(QueryReply(rows))
    found = await holdings(Client(wire, "test"))
    assert [each.silent_ms for each in found] == [None, 900]
    wire.answers["tenure.query.v1.silence"] = lambda payload: json.encode(QueryReply(code=Code.UNKNOWN_STREAM))
    found = await holdings(Client(wire, "test"))
    assert [each.silent_ms for each in found] == [None, None]


async def test_ps_leaves_retired_deployments_out_unless_asked() -> None:
    wire = FakeWire()
    wire.put(node(), deployment(), deployment("old0123456789", name="old", retired=True))
    client = Client(wire, "test")
    assert [each.name for each in await holdings(client)] == ["search"]
    assert [each.name for each in await holdings(client, retired=True)] == ["old", "search"]


def test_ps_says_why_nothing_is_loaded_and_until_when() -> None:
    assert circuit_word(61_000, "CHILD_DIED: signal 9", 1_000) == (
        "RUNTIME_CRASH_LOOP: CHILD_DIED: signal 9; no load for 1m 0s"
    )
    assert circuit_word(1_000, "CHILD_DIED: signal 9", 1_000).endswith("; one load may try")
    row = structs.replace(residency("failed"), circuit_until_ms=1_000, circuit_cause="CHILD_DIED: signal 9")
    word = why(held(live_answer(), log=row))
    assert word is not None
    assert word.startswith("RUNTIME_CRASH_LOOP: CHILD_DIED: signal 9")
    assert why(held(live_answer(entry()), log=row)) is None


async def test_closing_a_circuit_asks_for_it_and_tells_the_residency() -> None:
    wire = FakeWire()
    wire.put(node(), deployment(), residency("failed"))
    wire.answers["tenure.rpc.v1.circuit.close"] = lambda payload: json.encode(
        Reply("accepted", json.decode(payload)["command_id"], position=1)
    )
    row = await close(Client(wire, "test"), deployment(), "local")
    assert (row.state, row.circuit_until_ms) == ("failed", None)
    sent = json.decode(next(payload for subject, payload in wire.sent if subject.endswith("circuit.close")))
    assert (sent["deployment_id"], sent["node_id"]) == (deployment().id, "local")
