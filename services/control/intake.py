"""Intake: how commands, heartbeats and evidence reach the writer, and how outcomes go back.

The same commands come by request (`tenure.rpc.v1`, a NATS micro service) and over the durable stream
(`tenure.cmd.v1`). Decoding is strict. What cannot be decoded is answered with COMMAND_MALFORMED and
leaves no receipt, because it has no trustworthy id; nothing else in the process notices it.

A login's permissions say who may send what, but JetStream sends what it holds wherever it is asked to, past them. So
requests and heartbeats that JetStream has delivered are dropped, and durable ones count by the subject they came on.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import nats.errors
import structlog
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nats.aio.msg import Msg

from domain.folding.fleet import Fleet
from schemas import subjects
from schemas.codes import Code
from schemas.commands import BY_SUBJECT, RPC_ONLY, ClaimLease, Command, SubmitEvidence
from schemas.evidence import Evidence, SignedEvidence
from schemas.live import Beat
from schemas.replies import Reply
from schemas.tokens import EVIDENCE_BYTES_MAX, MESSAGE_BYTES_MAX, is_token
from services.clock import Clock
from services.control.invalid import InvalidEvidence
from services.control.sessions import Sessions
from services.control.submission import Respond, Submission, refusal
from services.control.writer import Writer
from services.eventlog.port import LogUnavailable

# refusals that say nothing about the command and leave no receipt: the durable streams keep it for later
NO_OUTCOME_YET = (Code.OVERLOADED, Code.UNAVAILABLE, Code.CONFLICT)

REFUSE_S = 2.0  # before one that may no longer lead refuses a request; shorter than anybody waits
LOOKS = 20  # meanwhile, whether it leads again
HELD_MAX = 1_000  # requests; what is beyond has no answer from here
PUT_BACK_S = 1.0

log = structlog.get_logger()

_DECODERS = {name: msgspec.json.Decoder(struct).decode for name, struct in BY_SUBJECT.items()}
_decode_beat = msgspec.json.Decoder(Beat).decode
_decode_signed = msgspec.json.Decoder(SignedEvidence).decode
_decode_evidence = msgspec.json.Decoder(Evidence).decode
_encode = msgspec.json.Encoder().encode


def decode_command(name: str, body: bytes, headers: dict[str, str] | None = None) -> Command | Reply:
    """The command struct for `<noun>.<verb>`, or the rejection of a body that is none."""
    decode = _DECODERS.get(name)
    if decode is None:
        return refusal(None, Code.COMMAND_UNKNOWN, f"there is no command {name!r}")
    if len(body) > MESSAGE_BYTES_MAX:
        return refusal(None, Code.MESSAGE_TOO_LARGE, f"{name}: {len(body)} bytes; {MESSAGE_BYTES_MAX} is the bound")
    try:
        command: Command = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return refusal(None, Code.COMMAND_MALFORMED, f"{name}: {error}")
    trace = headers.get(subjects.HEADER_TRACEPARENT) if headers else None
    if trace and len(trace) <= 64 and command.traceparent is None:
        return msgspec.structs.replace(command, traceparent=trace)
    return command


def decode_request(name: str, body: bytes, headers: dict[str, str] | None = None) -> Command | Reply:
    """What `decode_command` gives; a claim may also come on the subject of its node, and then for that node only."""
    claim, _, node_id = name.rpartition(".")
    if claim != "lease.claim":
        return decode_command(name, body, headers)
    decoded = decode_command(claim, body, headers)
    if isinstance(decoded, ClaimLease) and decoded.node_id != node_id:
        return refusal(decoded, Code.COMMAND_MALFORMED, f"a claim for {decoded.node_id} came under {node_id}'s name")
    return decoded


def delivered_by_jetstream(reply: str, headers: dict[str, str] | None) -> bool:
    """Whether this is a message of a stream: from a consumer, or from a direct read."""
    return reply.startswith("$JS.ACK.") or (headers is not None and "Nats-Stream" in headers)


class Intake:
    """`may_answer` tells whether this control plane may still renew a worker's session (see leadership)."""

    def __init__(
        self, writer: Writer, sessions: Sessions, fleet: Fleet, clock: Clock, may_answer: Callable[[], bool]
    ) -> None:
        self.invalid = InvalidEvidence(fleet.nodes, clock.elapsed_s)
        self._may_answer = may_answer
        self._writer = writer
        self._sessions = sessions
        self._fleet = fleet
        self._recalling: asyncio.Task[None] | None = None
        self._held: set[asyncio.Task[None]] = set()

    async def on_rpc(self, request: Any) -> None:
        """A request on `tenure.rpc.v1.<noun>.<verb>` (a `nats.micro.Request`); answered after the commit.

        One without a reply subject is decided as well; nobody hears the outcome, but it has its receipt.
        """
        inbox: str = request._msg.reply
        if delivered_by_jetstream(inbox, request.headers):
            log.warning("request.delivered_by_jetstream", subject=request.subject)
            return
        name = request.subject[len(subjects.RPC) + 1 :]
        decoded = decode_request(name, request.data, request.headers)

        async def respond(reply: Reply) -> None:
            if not inbox:
                log.warning("request.without_reply", command=name, outcome=reply.outcome, code=reply.code)
                return
            try:
                await request.respond(_encode(reply))
            except (nats.errors.Error, OSError) as error:  # the outcome stands; who asks again gets it
                log.warning("reply.lost", command=name, command_id=reply.command_id, error=repr(error))

        if isinstance(decoded, Reply):
            await respond(decoded)
        elif self._may_answer():
            await self._writer.submit(Submission(decoded, respond))
        else:
            self._hold(decoded, respond)

    def _hold(self, command: Command, respond: Respond) -> None:
        """Until this control plane leads again, as after a pause, for REFUSE_S at most; then it is refused.

        Whoever leads meanwhile gets the request as well, and its answer is the one to be heard. That this one leads
        again means that there was nobody.
        """
        if len(self._held) >= HELD_MAX:
            return

        async def hold() -> None:
            for _ in range(LOOKS):
                await asyncio.sleep(REFUSE_S / LOOKS)
                if self._may_answer():
                    await self._writer.submit(Submission(command, respond))
                    return
            await respond(
                refusal(command, Code.UNAVAILABLE, "this control plane cannot reach the log or leads no more")
            )

        task = asyncio.create_task(hold())
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    async def on_durable(self, message: Msg) -> None:
        """A message of COMMANDS; acknowledged when its receipt is committed, taken out when it is no command."""
        if not self._may_answer():
            await _put_back(message)
            return
        name = message.subject.removeprefix(f"{subjects.CMD}.")
        if name == message.subject:  # JetStream delivered it into the stream from another one
            log.warning("command.misplaced", subject=message.subject)
            await message.term()
            return
        decoded = decode_command(name, message.data, message.headers)
        if not isinstance(decoded, Reply) and name in RPC_ONLY:
            decoded = refusal(decoded, Code.COMMAND_NOT_DURABLE, f"{name} needs its reply")
        if isinstance(decoded, Reply):
            log.warning("command.refused", command=name, code=decoded.code, message=decoded.message)
            await message.term()
            return
        await self._writer.submit(Submission(decoded, _acknowledge(message)))

    async def on_evidence(self, message: Msg) -> None:
        """A message of EVIDENCE. Taken out where it is not even evidence; else decided and acknowledged.

        Not by one that may no longer lead: a generation that its successor let in would be a stranger to it.
        """
        if not self._may_answer():
            await _put_back(message)
            return
        try:
            signed = _decode_signed(message.data)
            evidence = _decode_evidence(signed.payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.warning("evidence.malformed", subject=message.subject, error=str(error))
            await message.term()
            return
        placed = subjects.evidence_subject(evidence.node_id, evidence.generation, evidence.work_id)
        if placed != message.subject:
            log.warning("evidence.misplaced", subject=message.subject, belongs=placed)
            await message.term()
            return
        size = len(signed.payload.encode())
        if size > EVIDENCE_BYTES_MAX:  # the struct bounds its characters
            log.warning("evidence.too_large", subject=message.subject, bytes=size, bytes_max=EVIDENCE_BYTES_MAX)
            await message.term()
            return
        valid = self._signature_valid(evidence, signed)
        if not valid and not self.invalid.admit(evidence.node_id, size):
            await message.term()
            return
        command = SubmitEvidence(
            command_id=evidence.evidence_id, actor=f"worker:{evidence.node_id}", signed=signed, signature_valid=valid
        )
        await self._writer.submit(Submission(command, _acknowledge(message)))

    async def on_beat(self, message: Msg) -> None:
        if delivered_by_jetstream(message.reply, message.headers):
            log.warning("beat.delivered_by_jetstream", subject=message.subject)
            return
        try:
            beat = _decode_beat(message.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.warning("beat.malformed", subject=message.subject, error=str(error))
            return
        if not is_token(beat.node_id) or message.subject != subjects.beat_subject(beat.node_id) or not message.reply:
            log.warning("beat.misplaced", subject=message.subject)
            return
        if not self._may_answer():
            log.warning("beat.not_the_leader", node_id=beat.node_id)
            return
        confirmed = self._writer.committed(beat.unconfirmed)
        unknown = [ident for ident in beat.unconfirmed if ident not in confirmed]
        if unknown and (self._recalling is None or self._recalling.done()):
            self._recalling = asyncio.create_task(self._recall(unknown))
        reply = self._sessions.beat(beat, confirmed, self._writer.ahead)
        if reply is None:
            log.info("beat.rests_on_no_commit", node_id=beat.node_id)
            return
        await message.respond(_encode(reply))

    async def _recall(self, evidence_ids: list[str]) -> None:
        """Look for outcomes in the log, for the next beat: this one renews the session even while the log is away."""
        try:
            await self._writer.recall(evidence_ids)
        except LogUnavailable as error:
            log.warning("beat.log_unavailable", error=str(error))

    def _signature_valid(self, evidence: Evidence, signed: SignedEvidence) -> bool:
        node = self._fleet.nodes.get(evidence.node_id)
        key = node.session_keys.get(evidence.generation) if node is not None else None
        return key is not None and signature_valid(key, signed)


def signature_valid(public_key: str, signed: SignedEvidence) -> bool:
    """Whether `signed.signature` is Ed25519 of the payload's UTF-8 bytes under this key (raw, base64)."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        key.verify(base64.b64decode(signed.signature, validate=True), signed.payload.encode())
    except (ValueError, binascii.Error, InvalidSignature):
        return False
    return True


async def _put_back(message: Msg) -> None:
    """For later, or for another control plane. Where this gets lost, JetStream's own wait does the same."""
    with contextlib.suppress(nats.errors.Error, OSError):
        await message.nak(delay=PUT_BACK_S)


def _acknowledge(message: Msg) -> Any:
    async def respond(reply: Reply) -> None:
        try:
            if reply.code in NO_OUTCOME_YET:
                await _put_back(message)
            else:
                await message.ack()
        except (nats.errors.Error, OSError) as error:  # it is delivered again and finds its receipt
            log.warning("acknowledgement.lost", subject=message.subject, error=repr(error))

    return respond
