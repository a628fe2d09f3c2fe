"""Intake: what becomes a command, and what is acknowledged, put back or taken out of the durable streams."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import nats.errors
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from schemas.codes import Code
from schemas.commands import CancelWork, DisableNode, EnrolNode
from schemas.evidence import Evidence, SignedEvidence, WorkCancelled, WorkFailed
from schemas.live import Beat, BeatReply
from schemas.replies import Reply
from schemas.tokens import EVIDENCE_BYTES_MAX, MESSAGE_BYTES_MAX
from services.clock import RandomIds
from services.control import intake as module
from services.control.intake import Intake, decode_command, signature_valid
from services.control.invalid import INVALID_BYTES_MAX, INVALID_MAX, WINDOW_S, InvalidEvidence
from services.control.sessions import Sessions
from services.control.writer import DECISIONS_MAX
from tests.unit.control.faulty import Control
from tests.unit.domain.story import Story, Terms

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC = base64.b64encode(KEY.public_key().public_bytes_raw()).decode()


class Delivered:
    """A message as the intake sees one; `told` is what was done with it. May fail as a closed connection does."""

    def __init__(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.subject, self.data, self.headers, self.reply = subject, data, headers, "inbox"
        self._msg = self  # a `nats.micro.Request` has its message there
        self.told: list[Any] = []
        self.closed = False

    async def respond(self, data: bytes) -> None:
        self._note(data)

    async def ack(self) -> None:
        self._note("ack")

    async def nak(self, delay: float) -> None:
        self._note("nak")

    async def term(self) -> None:
        self._note("term")

    def _note(self, what: Any) -> None:
        if self.closed:
            raise nats.errors.ConnectionClosedError
        self.told.append(what)


class Desk:
    def __init__(self, control: Control) -> None:
        fleet = control.folded.world.fleet
        self.control = control
        self.sessions = Sessions(fleet, Terms(), control.clock, RandomIds())
        self.intake = Intake(control.writer, self.sessions, fleet, control.clock, lambda: True)

    async def settle(self) -> None:
        while self.control.writer.queued:
            await self.control.writer.step()


@pytest.fixture
async def desk() -> Desk:
    """A control plane after the story of one leased probe."""
    story = Story(public_key=lambda generation: PUBLIC)
    story.claim(story.probe())
    control = await Control.after(story)
    control.clock.at_ms = story.world.now_ms
    return Desk(control)


def enrolment(command_id: str = "c1", **fields: Any) -> bytes:
    return msgspec.json.encode(
        {"command_id": command_id, "actor": "a", "node_id": "n2", "credential_sha256": "a" * 64, **fields}
    )


def evidence(**fields: Any) -> tuple[str, bytes]:
    """Subject and body of a signed cancellation of the probe."""
    values: dict[str, Any] = {
        "evidence_id": "e1", "node_id": "n1", "generation": "1", "number": 1, "work_id": "id0003", "attempt": 1,
        "seen_at_ms": 1, "statement": WorkCancelled("loading"), **fields,
    }  # fmt: skip
    payload = msgspec.json.encode(Evidence(**values)).decode()
    signed = SignedEvidence(payload, base64.b64encode(KEY.sign(payload.encode())).decode())
    return f"tenure.evidence.v1.{values['node_id']}.{values['generation']}.{values['work_id']}", msgspec.json.encode(
        signed
    )


# --- commands -----------------------------------------------------------------------------------------------


def test_decoding_is_strict() -> None:
    assert isinstance(decode_command("node.enrol", enrolment()), EnrolNode)
    for name, body, code in (
        ("node.explode", enrolment(), Code.COMMAND_UNKNOWN),
        ("node.enrol", enrolment(extra=1), Code.COMMAND_MALFORMED),
        ("node.enrol", enrolment(node_id="a.b"), Code.COMMAND_MALFORMED),
        ("node.enrol", enrolment(actor=""), Code.COMMAND_MALFORMED),
        ("node.enrol", b"[" * 100_000, Code.COMMAND_MALFORMED),
        ("node.enrol", b"\xff", Code.COMMAND_MALFORMED),
        ("node.enrol", enrolment(node_id="n1\n"), Code.COMMAND_MALFORMED),
        ("node.enrol", enrolment(credential_sha256="a" * 64 + "\n"), Code.COMMAND_MALFORMED),
        ("node.enrol", enrolment() + b" " * MESSAGE_BYTES_MAX, Code.MESSAGE_TOO_LARGE),
    ):
        refused = decode_command(name, body)
        assert isinstance(refused, Reply)
        assert (refused.code, refused.command_id) == (code, "")


def test_a_trace_is_taken_from_the_header_unless_the_body_has_one() -> None:
    traced = {"traceparent": "00-header-01"}
    assert decode_command("node.enrol", enrolment(), traced).traceparent == "00-header-01"  # type: ignore[union-attr]
    body = enrolment(traceparent="00-body-01")
    assert decode_command("node.enrol", body, traced).traceparent == "00-body-01"  # type: ignore[union-attr]
    too_long = {"traceparent": "x" * 65}
    assert decode_command("node.enrol", enrolment(), too_long).traceparent is None  # type: ignore[union-attr]


async def test_a_request_is_answered_and_a_lost_answer_ends_nothing(desk: Desk) -> None:
    asked, gone = (Delivered("tenure.rpc.v1.node.enrol", enrolment(ident)) for ident in ("c1", "c2"))
    gone.closed = True
    await desk.intake.on_rpc(asked)
    await desk.intake.on_rpc(gone)
    await desk.settle()
    assert msgspec.json.decode(asked.told[0], type=Reply).outcome == "accepted"
    gone.closed = False
    await desk.intake.on_rpc(gone)
    await desk.settle()
    assert msgspec.json.decode(gone.told[0], type=Reply).repeated


@pytest.mark.parametrize(
    ("subject", "node_id", "code"),
    [
        ("lease.claim.n1", "n1", None),
        ("lease.claim", "n1", None),
        ("lease.claim.n1", "n2", Code.COMMAND_MALFORMED),
        ("lease.claim.n2", "n1", Code.COMMAND_MALFORMED),
        ("lease.claim.", "n1", Code.COMMAND_MALFORMED),
        ("lease.renew.n1", "n1", Code.COMMAND_UNKNOWN),
        ("node.enrol.n1", "n1", Code.COMMAND_UNKNOWN),
    ],
)
async def test_a_claim_under_a_nodes_name_is_for_that_node(
    desk: Desk, subject: str, node_id: str, code: Code | None
) -> None:
    claim = {"command_id": "c", "actor": "a", "work_id": "id0003", "node_id": node_id, "generation": "1"}
    message = Delivered(f"tenure.rpc.v1.{subject}", msgspec.json.encode(claim))
    await desk.intake.on_rpc(message)
    await desk.settle()
    reply = msgspec.json.decode(message.told[0], type=Reply)
    assert reply.code is code
    if code is Code.COMMAND_MALFORMED and subject != "lease.claim.":
        assert "n2" in reply.message


@pytest.mark.parametrize("faults", [["unavailable"], ["conflict"] * DECISIONS_MAX])
async def test_a_durable_command_is_acknowledged_once_it_has_its_outcome(desk: Desk, faults: list[str]) -> None:
    message = Delivered("tenure.cmd.v1.node.enrol", enrolment())
    await desk.intake.on_durable(message)
    assert message.told == []
    desk.control.log.faults.extend(faults)
    await desk.settle()
    assert message.told == ["nak"]
    again = Delivered("tenure.cmd.v1.node.enrol", enrolment())
    await desk.intake.on_durable(again)
    await desk.settle()
    assert again.told == ["ack"]


@pytest.mark.parametrize("how", ["consumer", "direct"])
async def test_what_jetstream_delivers_is_no_request_and_no_heartbeat(desk: Desk, how: str) -> None:
    beat = msgspec.json.encode(Beat("n1", "1", "b", "", []))
    for subject, body, take in (
        ("tenure.rpc.v1.node.enrol", enrolment(), desk.intake.on_rpc),
        ("tenure.beat.v1.n1", beat, desk.intake.on_beat),
    ):
        message = Delivered(subject, body, {"Nats-Stream": "OBJ_x"} if how == "direct" else None)
        if how == "consumer":
            message.reply = "$JS.ACK.OBJ_x.c.1.1.1.1.0"
        await take(message)  # type: ignore[arg-type]
        assert message.told == []
        assert desk.control.writer.queued == 0
        await take(Delivered(subject, body))  # type: ignore[arg-type]
        await desk.settle()


async def test_a_durable_command_counts_by_the_subject_it_came_on(desk: Desk) -> None:
    message = Delivered("somewhere.els.node.enrol", enrolment())
    assert message.subject[len("tenure.cmd.v1.") :] == "node.enrol"
    await desk.intake.on_durable(message)
    assert message.told == ["term"]
    assert desk.control.writer.queued == 0


async def test_what_is_no_durable_command_is_taken_out(desk: Desk) -> None:
    claim = {"command_id": "c", "actor": "a", "work_id": "w", "node_id": "n1", "generation": "1"}
    for name, body in (
        ("node.enrol", b"{}"), ("node.explode", enrolment()), ("lease.claim", msgspec.json.encode(claim)),
    ):  # fmt: skip
        message = Delivered(f"tenure.cmd.v1.{name}", body)
        await desk.intake.on_durable(message)
        assert message.told == ["term"]
    assert desk.control.writer.queued == 0


# --- evidence -----------------------------------------------------------------------------------------------


async def test_signed_evidence_is_decided_and_acknowledged(desk: Desk) -> None:
    message = Delivered(*evidence())
    await desk.intake.on_evidence(message)
    await desk.settle()
    assert message.told == ["ack"]
    assert desk.control.announced[-1].after.stage == "cancelled"  # type: ignore[union-attr]


async def test_a_wrong_signature_is_kept_as_rejected(desk: Desk) -> None:
    subject, body = evidence()
    message = Delivered(subject, body.replace(b"loading", b"Loading"))
    await desk.intake.on_evidence(message)
    await desk.settle()
    assert message.told == ["ack"]
    assert str(desk.control.announced[-1].event.reason) == "SIGNATURE_INVALID"  # type: ignore[attr-defined]


async def test_of_invalid_evidence_so_much_is_kept_and_the_rest_counted(desk: Desk) -> None:
    """A flood in the name of one node: the log grows by the bound, valid evidence and other nodes are not held up."""
    before = len(await desk.control.log.read(0, 10_000))

    async def send(count: int, first: int, **fields: Any) -> list[Delivered]:
        messages = []
        for number in range(first, first + count):
            subject, body = evidence(evidence_id=f"e{number}", **fields)
            messages.append(Delivered(subject, body.replace(b"loading", b"Loading")))
            await desk.intake.on_evidence(messages[-1])
        await desk.settle()
        return messages

    flood = await send(200, 0)
    assert [message.told for message in flood] == [["ack"]] * INVALID_MAX + [["term"]] * (200 - INVALID_MAX)
    rows = await desk.control.log.read(0, 10_000)
    assert len(rows) - before == INVALID_MAX
    unknown = await send(1, 900, node_id="nobody")
    assert unknown[0].told == ["ack"]  # its own account: no such node

    with capture_logs() as lines:
        desk.control.clock.at_ms += int(WINDOW_S * 1_000)
        desk.intake.invalid.tell()
        desk.intake.invalid.tell()
    assert [(line["event"], line["node_id"], line["kept"], line["dropped"]) for line in lines] == [
        ("evidence.invalid_beyond_bound", "n1", INVALID_MAX, 200 - INVALID_MAX)
    ]
    again = await send(1, INVALID_MAX)  # what was dropped is sent again, and has its turn
    assert again[0].told == ["ack"]


async def test_valid_evidence_passes_while_invalid_is_dropped(desk: Desk) -> None:
    for number in range(INVALID_MAX + 1):
        subject, body = evidence(evidence_id=f"e{number}")
        await desk.intake.on_evidence(Delivered(subject, body.replace(b"loading", b"Loading")))
    valid = Delivered(*evidence(evidence_id="valid"))
    await desk.intake.on_evidence(valid)
    await desk.settle()
    assert valid.told == ["ack"]
    assert desk.control.announced[-1].after.stage == "cancelled"  # type: ignore[union-attr]


async def test_evidence_is_bounded_in_bytes_not_in_characters(desk: Desk) -> None:
    wide = "\N{GRINNING FACE}" * (EVIDENCE_BYTES_MAX // 4)
    message = Delivered(*evidence(statement=WorkFailed(Code.LOAD_FAILED, "m", {"d": wide})))
    await desk.intake.on_evidence(message)
    assert message.told == ["term"]
    assert desk.control.writer.queued == 0


def test_invalid_evidence_is_bounded_in_bytes_too() -> None:
    now_s = 0.0
    invalid = InvalidEvidence({"n1", "n2"}, lambda: now_s)
    half = INVALID_BYTES_MAX // 2
    assert [invalid.admit("n1", size) for size in (half, half, 1, 0)] == [True, True, False, True]
    assert invalid.admit("n2", half)  # each node has its own
    assert [invalid.admit(f"stranger{number}", half) for number in range(3)] == [True, True, False]
    now_s = WINDOW_S - 0.001
    assert not invalid.admit("n1", 1)
    now_s = WINDOW_S
    assert invalid.admit("n1", 1)


async def test_evidence_on_a_subject_that_is_not_its_own_is_taken_out(desk: Desk) -> None:
    _, body = evidence()
    for subject, data in (
        ("tenure.evidence.v1.n2.1.id0003", body), ("tenure.evidence.v1.n1.2.id0003", body),
        ("tenure.evidence.v1.n1.1.id0003", b"{}"),
        ("tenure.evidence.v1.n1.1.id0003", b'{"payload":"{}","signature":""}'),
    ):  # fmt: skip
        message = Delivered(subject, data)
        await desk.intake.on_evidence(message)
        assert message.told == ["term"]
    assert desk.control.writer.queued == 0


def test_signatures() -> None:
    signature = base64.b64encode(KEY.sign("größe".encode())).decode()
    assert signature_valid(PUBLIC, SignedEvidence("größe", signature))
    for key, payload, given in (
        (PUBLIC, "grösse", signature), (PUBLIC, "größe", ""), (PUBLIC, "größe", "!"), ("", "größe", signature),
        ("AAAA", "größe", signature), (base64.b64encode(b"x" * 32).decode(), "größe", signature),
    ):  # fmt: skip
        assert not signature_valid(key, SignedEvidence(payload, given))


# --- beats --------------------------------------------------------------------------------------------------


async def beat(desk: Desk, *unconfirmed: str, subject: str = "tenure.beat.v1.n1") -> BeatReply | None:
    body = msgspec.json.encode(Beat("n1", "1", "boot", "a" * 64, list(unconfirmed)))
    message = Delivered(subject, body)
    await desk.intake.on_beat(message)
    return msgspec.json.decode(message.told[0], type=BeatReply) if message.told else None


async def test_a_beat_confirms_evidence_whose_outcome_is_committed(desk: Desk) -> None:
    await desk.intake.on_evidence(Delivered(*evidence()))
    answer = await beat(desk, "e1")
    assert answer is not None
    assert answer.confirmed == []
    await desk.settle()
    answer = await beat(desk, "e1", "e2")
    assert answer is not None
    assert answer.confirmed == ["e1"]


async def test_a_beat_renews_the_session_while_the_log_is_away(desk: Desk) -> None:
    """A worker has unconfirmed evidence just then; losing its session would turn a pause into a loss."""
    assert desk.sessions.due() == []
    desk.control.log.down = True
    for _ in range(5):
        desk.control.clock.at_ms += Terms().session_ms - 1
        answer = await beat(desk, "e1")
        assert answer is not None
        assert not answer.fenced
    assert "LoseSession" not in {type(command).__name__ for command in desk.sessions.due()}


async def test_outcomes_from_before_a_restart_are_recalled_for_the_next_beat(desk: Desk) -> None:
    await desk.intake.on_evidence(Delivered(*evidence()))
    await desk.settle()
    other = Desk(await Control.start(desk.control.log.log))
    first = await beat(other, "e1")
    assert first is not None
    assert first.confirmed == []
    assert other.intake._recalling is not None
    await other.intake._recalling
    second = await beat(other, "e1")
    assert second is not None
    assert second.confirmed == ["e1"]


async def test_what_is_no_beat_is_not_answered(desk: Desk) -> None:
    assert await beat(desk, subject="tenure.beat.v1.n2") is None
    message = Delivered("tenure.beat.v1.n1", b"{}")
    await desk.intake.on_beat(message)
    assert message.told == []


async def test_a_worker_is_not_stopped_by_what_is_not_in_the_log(desk: Desk) -> None:
    """A disable that was decided while the log was away, and never committed, costs no resident."""
    desk.control.log.faults.append("unavailable")
    (refused,) = await desk.control.ask(DisableNode(command_id="d1", actor="a", node_id="n1"))
    assert refused.code is Code.UNAVAILABLE
    assert desk.control.writer.ahead
    assert await beat(desk) is None
    await desk.control.writer.step()  # takes it back from the log
    answer = await beat(desk)
    assert answer is not None
    assert not answer.fenced
    await desk.control.ask(DisableNode(command_id="d2", actor="a", node_id="n1"))
    answer = await beat(desk)
    assert answer is not None
    assert answer.fenced


async def test_work_is_not_stopped_by_a_cancel_that_is_not_in_the_log(desk: Desk) -> None:
    desk.control.log.faults.append("unavailable")
    await desk.control.ask(CancelWork(command_id="d1", actor="a", work_id="id0003"))
    answer = await beat(desk)
    assert answer is not None
    assert answer.cancelled == []
    await desk.control.writer.step()
    await desk.control.ask(CancelWork(command_id="d2", actor="a", work_id="id0003"))
    answer = await beat(desk)
    assert answer is not None
    assert answer.cancelled == ["id0003"]


async def test_one_that_may_lead_no_more_judges_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor may have let in a generation that it does not know: rightly signed evidence would look forged."""
    leads = False
    monkeypatch.setattr(module, "REFUSE_S", 0.0)
    desk.intake = Intake(desk.control.writer, desk.sessions, desk.control.folded.world.fleet, desk.control.clock,
                         lambda: leads)  # fmt: skip
    subject, body = evidence(generation="2")
    for _ in range(INVALID_MAX + 2):
        message: Any = Delivered(subject, body)
        await desk.intake.on_evidence(message)
        assert message.told == ["nak"]
    durable: Any = Delivered("tenure.cmd.v1.node.enrol", enrolment())
    await desk.intake.on_durable(durable)
    assert durable.told == ["nak"]
    request: Any = Delivered("tenure.rpc.v1.node.enrol", enrolment())
    await desk.intake.on_rpc(request)
    assert request.told == []  # whoever leads has the request as well
    (holding,) = desk.intake._held
    await holding
    (told,) = request.told
    assert msgspec.json.decode(told, type=Reply).code is Code.UNAVAILABLE
    assert desk.control.writer.queued == 0


async def test_a_request_that_comes_while_leadership_is_renewed_waits_for_that(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause, say: until the renewal is answered nobody knows whether another took over."""
    leads = False
    monkeypatch.setattr(module, "REFUSE_S", 0.0)
    desk.intake = Intake(desk.control.writer, desk.sessions, desk.control.folded.world.fleet, desk.control.clock,
                         lambda: leads)  # fmt: skip
    request: Any = Delivered("tenure.rpc.v1.node.enrol", enrolment())
    await desk.intake.on_rpc(request)
    leads = True
    (holding,) = desk.intake._held
    await holding
    await desk.settle()
    (told,) = request.told
    assert msgspec.json.decode(told, type=Reply).outcome == "accepted"
