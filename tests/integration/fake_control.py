"""A control plane small enough to read, for tests of the worker: real bus, real messages, no log.

It registers one node's worker, grants leases, renews them, answers beats and takes evidence in from
JetStream, checking each signature with the key that the generation registered. A holder that claims again gets the
next attempt. Tests say what it should withhold (`mute`), and look at what came in.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import msgspec
import nats
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas import subjects
from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.commands import ClaimLease, LeaveWorker, RegisterWorker, ReleaseLease, RenewLease
from schemas.evidence import Evidence, Progress, ResidentLost, SignedEvidence, Statement
from schemas.live import Beat, BeatReply, LiveAnswer
from schemas.profiles import RuntimeProfile
from schemas.replies import Reply
from schemas.serving import ServeAnswer
from schemas.tasks.text import EmbedRequest
from schemas.work import Offer, WorkKind, WorkOrder, WorkSpec
from services.bus import ensure_streams

WAIT_S = 60.0


def now_ms() -> int:
    return int(time.time() * 1_000)


@dataclass
class Item:
    """One work item and what became of it."""

    work_id: str
    kind: WorkKind
    spec: WorkSpec
    location: str | None
    files: list[FileEntry]
    profile: RuntimeProfile | None
    attempt: int = 0
    token: str = ""
    since_ms: int = 0
    until_ms: int = 0
    leased: bool = False
    cancel: bool = False
    released: bool = False
    renewals: int = 0
    stages: list[str] = field(default_factory=list)
    final: Statement | None = None


class FakeControl:
    def __init__(self, node_id: str, *, lease_ms: int = 30_000, session_ms: int = 10_000, beat_ms: int = 100) -> None:
        self.node_id = node_id
        self.lease_ms, self.session_ms, self.beat_ms = lease_ms, session_ms, beat_ms
        self.generation = 0
        self.keys: dict[str, Ed25519PublicKey] = {}
        self.registrations: list[RegisterWorker] = []
        self.beats: list[Beat] = []
        self.items: dict[str, Item] = {}
        self.evidence: list[Evidence] = []
        self.signed: list[SignedEvidence] = []
        self.lost: list[ResidentLost] = []
        self.left: list[str] = []
        self.mute = False  # answer no beat
        self.hold_evidence = False  # confirm nothing
        self.refuse_registration: Code | None = None
        self.claims = 0
        self.tokens_to_lose = 0  # grants whose answer gets lost: the worker hears of them without their secret
        self._claimed: dict[str, Reply] = {}  # by command id: what a claim that comes again hears
        self._seen: set[str] = set()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, url: str) -> None:
        self.client: Client = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        await ensure_streams(self.client)
        for name, handler in {
            "worker.register": self._register,
            "worker.leave": self._leave,
            "lease.claim": self._claim,
            "lease.renew": self._renew,
            "lease.release": self._release,
        }.items():
            subject = subjects.claim_subject(self.node_id) if name == "lease.claim" else subjects.rpc_subject(name)
            await self.client.subscribe(subject, cb=handler)
        await self.client.subscribe(f"{subjects.BEAT}.*", cb=self._beat)
        task = asyncio.create_task(self._take_evidence())
        self._tasks.add(task)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.client.close()

    # --- what tests ask

    async def until(self, condition: Any, what: str, timeout_s: float = WAIT_S) -> None:
        """Wait for a condition on what came in; every message that comes in is a reason to look again."""
        async with asyncio.timeout(timeout_s):
            async with self._changed:
                try:
                    await self._changed.wait_for(condition)
                except asyncio.CancelledError:
                    raise AssertionError(f"waited {timeout_s} s for: {what}") from None

    async def registered(self, generation: int) -> None:
        await self.until(lambda: self.generation >= generation, f"generation {generation}")

    async def order(
        self,
        kind: WorkKind,
        spec: WorkSpec,
        *,
        files: list[FileEntry] | None = None,
        location: str | None = None,
        profile: RuntimeProfile | None = None,
        publish: bool = True,
    ) -> Item:
        item = Item(uuid.uuid4().hex, kind, spec, location, files or [], profile)
        self.items[item.work_id] = item
        if publish:
            await self.publish_offer(item)
        return item

    async def publish_offer(self, item: Item) -> None:
        offer = Offer(item.work_id, self.node_id, item.kind, item.attempt + 1)
        subject = subjects.work_subject(self.node_id, item.work_id)
        await self.client.jetstream().publish(subject, msgspec.json.encode(offer))

    async def outcome(self, item: Item) -> Any:
        await self.until(lambda: item.final is not None, f"the outcome of {item.kind}")
        return item.final

    async def invoke(self, deployment_id: str, request: EmbedRequest | bytes, timeout_s: float = WAIT_S) -> ServeAnswer:
        body = request if isinstance(request, bytes) else msgspec.msgpack.encode(request)
        subject = subjects.serve_subject(self.node_id, str(self.generation), deployment_id)
        reply = await self.client.request(subject, body, timeout=timeout_s)
        return msgspec.msgpack.decode(reply.data, type=ServeAnswer)

    async def live(self) -> LiveAnswer:
        reply = await self.client.request(subjects.live_subject(self.node_id), b"", timeout=WAIT_S)
        return msgspec.json.decode(reply.data, type=LiveAnswer)

    # --- what the worker asks

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _reply(self, message: Msg, command_id: str, result: dict[str, Any] | None, code: Code | None) -> None:
        reply = Reply(outcome="rejected" if code else "accepted", command_id=command_id, code=code, result=result or {})
        await message.respond(msgspec.json.encode(reply))
        await self._notify()

    async def _register(self, message: Msg) -> None:
        command = msgspec.json.decode(message.data, type=RegisterWorker)
        if self.refuse_registration is not None:
            await self._reply(message, command.command_id, None, self.refuse_registration)
            return
        self.generation += 1
        raw = base64.b64decode(command.session_public_key)
        self.keys[str(self.generation)] = Ed25519PublicKey.from_public_bytes(raw)
        self.registrations.append(command)
        result = {
            "generation": str(self.generation),
            "session_ms": self.session_ms,
            "beat_ms": self.beat_ms,
            "lease_ms": self.lease_ms,
        }
        await self._reply(message, command.command_id, result, None)

    async def _leave(self, message: Msg) -> None:
        command = msgspec.json.decode(message.data, type=LeaveWorker)
        self.left.append(command.generation)
        await self._reply(message, command.command_id, None, None)

    async def _claim(self, message: Msg) -> None:
        command = msgspec.json.decode(message.data, type=ClaimLease)
        self.claims += 1
        item = self.items[command.work_id]
        if command.command_id in self._claimed:
            await message.respond(msgspec.json.encode(self._claimed[command.command_id]))
            return
        if command.generation != str(self.generation):
            await self._reply(message, command.command_id, None, Code.GENERATION_FENCED)
            return
        if item.final is not None:
            await self._reply(message, command.command_id, None, Code.WORK_ENDED)
            return
        item.attempt += 1
        item.token, item.leased = secrets.token_hex(16), True
        item.since_ms = now_ms()
        item.until_ms = item.since_ms + self.lease_ms
        order = WorkOrder(
            work_id=item.work_id, kind=item.kind, attempt=item.attempt, generation=str(self.generation),
            token=item.token, lease_ms=self.lease_ms, until_ms=item.until_ms, deadline_ms=item.until_ms + 600_000,
            spec=item.spec, location=item.location, files=item.files, profile=item.profile,
        )  # fmt: skip
        told = {"work_id": item.work_id, "attempt": item.attempt}
        self._claimed[command.command_id] = Reply("accepted", command.command_id, result=told, repeated=True)
        if self.tokens_to_lose:
            self.tokens_to_lose -= 1
            await message.respond(msgspec.json.encode(self._claimed[command.command_id]))
            return
        await self._reply(message, command.command_id, msgspec.to_builtins(order), None)

    async def _renew(self, message: Msg) -> None:
        command = msgspec.json.decode(message.data, type=RenewLease)
        item, code = self.items[command.work_id], None
        if item.final is not None:
            code = Code.WORK_ENDED
        elif not item.leased or command.attempt != item.attempt:
            code = Code.LEASE_ENDED
        elif command.token != item.token:
            code = Code.LEASE_TOKEN_WRONG
        elif now_ms() < item.since_ms + self.lease_ms // 2:
            code = Code.LEASE_RENEWAL_EARLY
        else:
            item.since_ms = now_ms()
            item.until_ms = item.since_ms + self.lease_ms
            item.renewals += 1
        result = {"until_ms": item.until_ms, "lease_ms": self.lease_ms}
        await self._reply(message, command.command_id, None if code else result, code)

    async def _release(self, message: Msg) -> None:
        command = msgspec.json.decode(message.data, type=ReleaseLease)
        item = self.items[command.work_id]
        item.released, item.leased = True, False
        await self._reply(message, command.command_id, None, None)

    async def _beat(self, message: Msg) -> None:
        if self.mute:
            return
        beat = msgspec.json.decode(message.data, type=Beat)
        self.beats.append(beat)
        open_items = [item for item in self.items.values() if item.final is None]
        reply = BeatReply(
            fenced=beat.generation != str(self.generation),
            session_ms=self.session_ms,
            beat_ms=self.beat_ms,
            confirmed=[] if self.hold_evidence else [one for one in beat.unconfirmed if one in self._seen],
            offers=[Offer(i.work_id, self.node_id, i.kind, i.attempt + 1) for i in open_items if not i.leased],
            cancelled=[item.work_id for item in open_items if item.leased and item.cancel],
        )
        await message.respond(msgspec.json.encode(reply))
        await self._notify()

    async def _take_evidence(self) -> None:
        subscription = await self.client.jetstream().pull_subscribe(
            f"{subjects.EVIDENCE}.>", durable="intake", stream=subjects.STREAM_EVIDENCE
        )
        while True:
            try:
                messages = await subscription.fetch(64, timeout=1)
            except TimeoutError:
                continue  # nothing came
            for message in messages:
                self._take(message)
                await message.ack()
            await self._notify()

    def _take(self, message: Msg) -> None:
        """Check the signature, then note what it says. A piece that was seen before changes nothing."""
        signed = msgspec.json.decode(message.data, type=SignedEvidence)
        evidence = msgspec.json.decode(signed.payload, type=Evidence)
        self.keys[evidence.generation].verify(base64.b64decode(signed.signature), signed.payload.encode())
        expected = subjects.evidence_subject(self.node_id, evidence.generation, evidence.work_id)
        assert message.subject == expected
        assert (message.headers or {})[subjects.HEADER_MSG_ID] == evidence.evidence_id
        if evidence.evidence_id in self._seen:
            return
        self._seen.add(evidence.evidence_id)
        self.evidence.append(evidence)
        self.signed.append(signed)
        statement, item = evidence.statement, self.items[evidence.work_id]
        if isinstance(statement, ResidentLost):
            self.lost.append(statement)
        elif evidence.generation != str(self.generation) or evidence.attempt != item.attempt or not item.leased:
            return
        elif isinstance(statement, Progress):
            item.stages.append(statement.stage)
        else:
            item.final, item.leased = statement, False
