"""Evidence: signed so that anybody can check it, in order, kept until confirmed, bounded."""

from __future__ import annotations

import asyncio
import base64

import msgspec
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from schemas.evidence import Evidence, Progress, SignedEvidence, Verified
from schemas.tokens import UNCONFIRMED_EVIDENCE_MAX
from worker.duty.outbox import PROGRESS_ROOM, Outbox, public_key

STATEMENT = Verified("somewhere", 1, 2, 3.0)


class Bus:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, str]] = []
        self.failures = 0

    async def publish(self, subject: str, body: bytes, message_id: str) -> None:
        if self.failures:
            self.failures -= 1
            raise TimeoutError
        self.sent.append((subject, body, message_id))


def outbox(bus: Bus) -> tuple[Outbox, Ed25519PrivateKey]:
    key = Ed25519PrivateKey.generate()
    return Outbox("node", "7", key, bus.publish), key


async def run_until_sent(box: Outbox, bus: Bus, count: int) -> None:
    task = asyncio.create_task(box.run())
    async with asyncio.timeout(5):
        while len(bus.sent) < count:  # noqa: ASYNC110 - the bus of these tests sets no event
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


async def test_signature_is_over_the_text_and_the_text_tells_all() -> None:
    bus = Bus()
    box, key = outbox(bus)
    await box.add("work-1", 2, STATEMENT)
    await run_until_sent(box, bus, 1)
    subject, body, message_id = bus.sent[0]
    signed = msgspec.json.decode(body, type=SignedEvidence)
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key(key)))
    public.verify(base64.b64decode(signed.signature), signed.payload.encode())
    with pytest.raises(InvalidSignature):
        public.verify(base64.b64decode(signed.signature), signed.payload.replace("7", "8").encode())
    evidence = msgspec.json.decode(signed.payload, type=Evidence)
    assert (evidence.node_id, evidence.generation, evidence.number) == ("node", "7", 1)
    assert (evidence.work_id, evidence.attempt, evidence.statement) == ("work-1", 2, STATEMENT)
    assert evidence.evidence_id == message_id
    assert subject == "tenure.evidence.v1.node.7.work-1"


async def test_order_survives_a_bus_that_fails() -> None:
    bus = Bus()
    bus.failures = 2
    box, _ = outbox(bus)
    for _ in range(5):
        await box.add("work-1", 1, STATEMENT)
    await run_until_sent(box, bus, 5)
    payloads = [msgspec.json.decode(body, type=SignedEvidence).payload for _, body, _ in bus.sent]
    assert [msgspec.json.decode(payload, type=Evidence).number for payload in payloads] == [1, 2, 3, 4, 5]


async def test_kept_until_confirmed_and_sent_again_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.duty.outbox.RESEND_MS", 0.0)
    bus = Bus()
    box, _ = outbox(bus)
    confirmed = await box.add("work-1", 1, STATEMENT)
    await run_until_sent(box, bus, 2)
    assert bus.sent[0] == bus.sent[1]
    assert not confirmed.is_set()
    assert box.unconfirmed() == [bus.sent[0][2]]
    await box.confirm(["something-else", bus.sent[0][2]])
    assert confirmed.is_set()
    assert box.unconfirmed() == []


async def test_bound_holds_back_results_and_leaves_out_progress() -> None:
    box, _ = outbox(Bus())
    for _ in range(UNCONFIRMED_EVIDENCE_MAX):
        await box.add("work-1", 1, STATEMENT)
    box.add_progress("work-1", 1, Progress("loading"))
    assert len(box.unconfirmed()) == UNCONFIRMED_EVIDENCE_MAX
    waiting = asyncio.create_task(box.add("work-1", 1, STATEMENT))
    await asyncio.sleep(0)
    assert not waiting.done()
    await box.confirm(box.unconfirmed()[:1])
    await asyncio.wait_for(waiting, 5)
    assert len(box.unconfirmed()) == UNCONFIRMED_EVIDENCE_MAX


async def test_progress_uses_only_room_to_spare() -> None:
    box, _ = outbox(Bus())
    for _ in range(UNCONFIRMED_EVIDENCE_MAX):
        box.add_progress("work-1", 1, Progress("loading"))
    assert len(box.unconfirmed()) == UNCONFIRMED_EVIDENCE_MAX - PROGRESS_ROOM + 1
