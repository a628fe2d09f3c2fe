"""The worker's evidence: numbered, signed, sent in order, kept until its outcome is committed.

The signing key is made for one generation and dies with it, and so does what is still unconfirmed: a later
generation could not sign it, and the control plane would fence it. JetStream's acknowledgement doesn't
count as confirmation, because JetStream isn't the record: only an id that a beat's reply lists leaves the
outbox. What isn't confirmed for RESEND_MS is sent again with the same id and the same bytes.

At most UNCONFIRMED_EVIDENCE_MAX pieces are kept. Above that, `add` waits; progress is left out instead. A statement
that does not fit into a message is replaced by one that says so: work must not be done again and again because nobody
can hear of its outcome. What does not fit any more, say since the server was set to less, is held back alone.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from schemas.codes import Code, Refusal
from schemas.evidence import Evidence, Progress, ResidentLost, SignedEvidence, Statement, WorkFailed
from schemas.subjects import evidence_subject
from schemas.tokens import EVIDENCE_BYTES_MAX, UNCONFIRMED_EVIDENCE_MAX
from worker.clock import epoch_ms, local_ms

RESEND_MS = 5_000.0
RETRY_SECONDS = 0.25
PROGRESS_ROOM = 32  # progress is left out when fewer places than this are free
_log = structlog.get_logger(__name__)

SHORT_CHARACTERS = 200  # of the message of what is said in short

# Publishes the bytes on a subject with an id for deduplication; raises on failure.
Publish = Callable[[str, bytes, str], Awaitable[None]]
# The same message, only looked at: raises Refusal where it is too large to be published.
Check = Callable[[str, bytes, str], None]


def unchecked(subject: str, body: bytes, message_id: str) -> None:
    """For a bus without a bound."""


class _Kept(Struct, eq=False):
    evidence_id: str
    subject: str
    body: bytes
    confirmed: asyncio.Event
    sent_ms: float | None = None


class Outbox:
    """One generation's evidence."""

    def __init__(
        self, node_id: str, generation: str, key: Ed25519PrivateKey, publish: Publish, check: Check = unchecked
    ) -> None:
        self._node_id = node_id
        self._generation = generation
        self._key = key
        self._publish = publish
        self._check = check
        self._number = 0
        self._kept: dict[str, _Kept] = {}  # in the order of their numbers
        self._changed = asyncio.Event()
        self._room = asyncio.Condition()

    def unconfirmed(self) -> list[str]:
        return list(self._kept)

    async def add(self, work_id: str, attempt: int, statement: Statement) -> asyncio.Event:
        """Sign and keep one statement; the event is set when its outcome is committed."""
        async with self._room:
            await self._room.wait_for(lambda: len(self._kept) < UNCONFIRMED_EVIDENCE_MAX)
            return self._keep(work_id, attempt, statement)

    def add_progress(self, work_id: str, attempt: int, statement: Statement) -> None:
        """Keep it if there is room to spare: progress is a courtesy, results are not."""
        if len(self._kept) <= UNCONFIRMED_EVIDENCE_MAX - PROGRESS_ROOM:
            self._keep(work_id, attempt, statement)

    def _keep(self, work_id: str, attempt: int, statement: Statement) -> asyncio.Event:
        self._number += 1
        try:
            kept = self._made(work_id, attempt, statement)
        except Refusal as refusal:
            _log.error(
                "evidence_too_large", work_id=work_id, statement=type(statement).__name__, reason=refusal.message
            )
            kept = self._made(work_id, attempt, _in_short(statement, refusal), check=False)
        self._kept[kept.evidence_id] = kept
        self._changed.set()
        return kept.confirmed

    def _made(self, work_id: str, attempt: int, statement: Statement, *, check: bool = True) -> _Kept:
        """Signed, with the latest number; raises Refusal where it is too large."""
        evidence = Evidence(
            evidence_id=uuid.uuid4().hex,
            node_id=self._node_id,
            generation=self._generation,
            number=self._number,
            work_id=work_id,
            attempt=attempt,
            seen_at_ms=epoch_ms(),
            statement=statement,
        )
        kept = _Kept(
            evidence.evidence_id,
            evidence_subject(self._node_id, self._generation, work_id),
            msgspec.json.encode(sign(evidence, self._key)),
            asyncio.Event(),
        )
        if check:
            self._check(kept.subject, kept.body, kept.evidence_id)
        return kept

    async def confirm(self, evidence_ids: Iterable[str]) -> None:
        async with self._room:
            for evidence_id in evidence_ids:
                kept = self._kept.pop(evidence_id, None)
                if kept is not None:
                    kept.confirmed.set()
            self._room.notify_all()

    async def run(self) -> None:
        while True:
            await self.step()

    async def step(self) -> None:
        """Send what is due, in order, then wait for something new or the next time to resend."""
        self._changed.clear()
        for kept in list(self._kept.values()):
            if kept.confirmed.is_set() or (kept.sent_ms is not None and local_ms() - kept.sent_ms < RESEND_MS):
                continue
            try:
                self._check(kept.subject, kept.body, kept.evidence_id)
                await self._publish(kept.subject, kept.body, kept.evidence_id)
            except Refusal as refusal:  # asked again later, as what is unconfirmed is sent again; the others go on
                _log.error("evidence_not_sent", evidence_id=kept.evidence_id, reason=refusal.message)
            except Exception as error:  # noqa: BLE001 - the bus is away, in whichever way; the evidence is kept
                _log.warning("evidence_not_sent", evidence_id=kept.evidence_id, error=repr(error))
                await asyncio.sleep(RETRY_SECONDS)
                return
            kept.sent_ms = local_ms()
        timeout = RESEND_MS / 1_000.0 if self._kept else None
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return


def _in_short(statement: Statement, refusal: Refusal) -> Statement:
    """What is said in place of a statement that is too large. Progress is as short as can be."""
    if isinstance(statement, Progress):
        return statement
    if isinstance(statement, ResidentLost):
        return msgspec.structs.replace(statement, message=statement.message[:SHORT_CHARACTERS])
    if isinstance(statement, WorkFailed):
        return WorkFailed(statement.code, statement.message[:SHORT_CHARACTERS])
    return WorkFailed(refusal.code, f"{type(statement).__name__} could not be told: {refusal.message}")


def sign(evidence: Evidence, key: Ed25519PrivateKey) -> SignedEvidence:
    """Raises Refusal where it is too large."""
    payload = msgspec.json.encode(evidence)
    if len(payload) > EVIDENCE_BYTES_MAX:
        message = f"evidence of {len(payload)} bytes is over the bound of {EVIDENCE_BYTES_MAX}"
        raise Refusal(Code.MESSAGE_TOO_LARGE, message)
    return SignedEvidence(payload.decode(), base64.b64encode(key.sign(payload)).decode())


def public_key(key: Ed25519PrivateKey) -> str:
    """Raw, base64: what `worker.register` carries."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()
