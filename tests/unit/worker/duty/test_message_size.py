"""What does not fit into a message of the bus is not sent: the server would close the connection for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.client import Client

from schemas.codes import Code, Refusal
from schemas.commands import ReleaseLease
from schemas.evidence import Evidence, Progress, ResidentLost, SignedEvidence, Statement, Verified, WorkFailed
from schemas.live import Beat
from schemas.tokens import EVIDENCE_BYTES_MAX, MESSAGE_BYTES_MAX
from worker.duty.control import NatsControl, Unreachable
from worker.duty.message_size import check_size, message_bytes
from worker.duty.outbox import Outbox, sign

SMALL = 4_096  # the bound of these tests' bus


async def sent_by_nats_py(body: bytes, headers: dict[str, str] | None) -> bytes:
    client = Client()
    sent: list[bytes] = []

    async def send(command: bytes) -> None:
        sent.append(command)

    client._send_command = send  # type: ignore[method-assign]
    await client._send_publish("s", "", body, len(body), headers)
    return sent[0]


@pytest.mark.parametrize("headers", [None, {"Nats-Msg-Id": "a" * 32}, {"One": "1", "Two": "zwölf"}])
async def test_the_size_is_what_the_server_counts(headers: dict[str, str] | None) -> None:
    command = await sent_by_nats_py(b"body", headers)
    line, _, rest = command.partition(b"\r\n")
    assert int(line.split()[-1]) == message_bytes(b"body", headers) == len(rest) - len(b"\r\n")


@pytest.mark.parametrize(("bus", "bound"), [(SMALL, SMALL), (8 * 1024 * 1024, MESSAGE_BYTES_MAX)])
def test_the_smaller_bound_counts_and_headers_do(bus: int, bound: int) -> None:
    client: Any = SimpleNamespace(max_payload=bus)
    headers = {"Nats-Msg-Id": "a"}
    fits = bound - message_bytes(b"", headers)
    check_size(client, "s", bytes(fits), headers)
    with pytest.raises(Refusal) as caught:
        check_size(client, "s", bytes(fits + 1), headers)
    assert caught.value.code == Code.MESSAGE_TOO_LARGE
    assert str(bound) in caught.value.message


async def test_a_command_that_does_not_fit_is_rejected_and_not_sent() -> None:
    client: Any = SimpleNamespace(max_payload=SMALL, is_connected=True)  # with nothing to ask on
    control = NatsControl(client)
    release = ReleaseLease(
        command_id="c", actor="a", work_id="w", generation="1", attempt=1, token="t", reason="x" * SMALL
    )
    reply = await control.command("lease.release", release, 1_000.0)
    assert (reply.outcome, reply.command_id, reply.code) == ("rejected", "c", Code.MESSAGE_TOO_LARGE)
    with pytest.raises(Unreachable, match="MESSAGE_TOO_LARGE"):
        await control.beat(Beat("n", "1", "b", "0" * 64, [f"{number:064}" for number in range(256)]), 1_000.0)


@pytest.fixture(autouse=True)
def _one_round_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outbox sends what it has again at once, and waits for nothing."""
    monkeypatch.setattr("worker.duty.outbox.RESEND_MS", 0.0)


class Bus:
    """Takes what fits, and fails a test that publishes what does not."""

    def __init__(self) -> None:
        self.bound = SMALL
        self.statements: list[tuple[int, Statement]] = []

    def check(self, subject: str, body: bytes, message_id: str) -> None:
        if len(body) > self.bound:
            raise Refusal(Code.MESSAGE_TOO_LARGE, f"{len(body)} bytes")

    async def publish(self, subject: str, body: bytes, message_id: str) -> None:
        assert len(body) <= self.bound
        evidence = msgspec.json.decode(msgspec.json.decode(body, type=SignedEvidence).payload, type=Evidence)
        self.statements.append((evidence.number, evidence.statement))


def outbox_on(bus: Bus) -> Outbox:
    return Outbox("node", "7", Ed25519PrivateKey.generate(), bus.publish, bus.check)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (Verified("x" * SMALL, 1, 2, 3.0), WorkFailed(Code.MESSAGE_TOO_LARGE, "Verified could not")),
        (Verified("x" * EVIDENCE_BYTES_MAX, 1, 2, 3.0), WorkFailed(Code.MESSAGE_TOO_LARGE, "Verified could not")),
        (WorkFailed(Code.LOAD_FAILED, "y" * 300, {"tail": "z" * SMALL}), WorkFailed(Code.LOAD_FAILED, "y" * 200)),
        (ResidentLost("d1", Code.CHILD_DIED, "y" * SMALL, 1), ResidentLost("d1", Code.CHILD_DIED, "y" * 200, 1)),
    ],
)
async def test_a_statement_that_does_not_fit_says_so_in_its_place(statement: Statement, told: Statement) -> None:
    bus = Bus()
    box = outbox_on(bus)
    box.add_progress("w1", 1, Progress("loading"))
    await box.add("w1", 1, statement)
    assert len(box.unconfirmed()) == 2
    await box.step()
    assert [number for number, _ in bus.statements] == [1, 2]
    said = bus.statements[1][1]
    assert isinstance(said, WorkFailed | ResidentLost)
    assert isinstance(told, WorkFailed | ResidentLost)
    assert type(said) is type(told)
    assert said.code == told.code
    assert said.message.startswith(told.message)
    assert len(said.message) <= SMALL


async def test_what_fits_no_more_is_held_back_alone_until_it_fits_again() -> None:
    """A server that was set to less while something waited."""
    bus = Bus()
    box = outbox_on(bus)
    await box.add("w1", 1, Verified("x" * 2_000, 1, 2, 3.0))
    await box.add("w2", 1, Verified("y", 1, 2, 3.0))
    bus.bound = 1_000
    await box.step()
    assert [number for number, _ in bus.statements] == [2]
    bus.bound = SMALL
    await box.step()
    assert [number for number, _ in bus.statements] == [2, 1, 2]


def test_signing_refuses_what_nobody_would_take() -> None:
    evidence = Evidence("e", "n", "1", 1, "w", 1, 0, Verified("x" * EVIDENCE_BYTES_MAX, 1, 2, 3.0))
    with pytest.raises(Refusal, match="MESSAGE_TOO_LARGE"):
        sign(evidence, Ed25519PrivateKey.generate())
