"""A row of the log as a message of EVENTS, and what keeps the bus from carrying it.

A bus that is away comes back. But no waiting helps a message whose subject no server takes, or one that is over the
server's limit, which ends the connection that brings it. So both are looked for before anything is sent.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from schemas import subjects
from services.eventlog.port import LogRow

HEADER_EXPECTED = "Nats-Expected-Last-Sequence"
SUBJECT_MAX = 900  # characters; of four bytes each that is below nats-server's `max_control_line` of 4,096 bytes
OWN_BYTES_MAX = 2_048  # of headers, without what they repeat of the payload
FRAME_BYTES = len(b"NATS/1.0\r\n" + b"\r\n")  # around the headers
LINE_BYTES = len(b": " + b"\r\n")  # in each header
RUNBOOK = "see docs/runbooks/relay-stopped.md"

# Spaces and control characters, empty tokens, and tokens that stand for others. Client and server refuse some of these,
# and JetStream stores a message under none.
_NO_SUBJECT = re.compile(r"[\s\x00-\x1f\x7f]|\.\.|\.\Z|\.[*>](?:\.|\Z)")


class _Traced(msgspec.Struct):
    traceparent: str | None = None


_decode_trace = msgspec.json.Decoder(_Traced).decode


class Message(NamedTuple):
    """`position` is that of its event in the log."""

    position: int
    subject: str
    headers: dict[str, str]
    payload: bytes

    @property
    def size_bytes(self) -> int:
        """What the server counts: the headers, as the client writes them, and the payload."""
        headers = sum(len(f"{name}{value}".encode()) + LINE_BYTES for name, value in self.headers.items())
        return FRAME_BYTES + headers + len(self.payload)


class Obstacle(NamedTuple):
    """Why a message cannot be carried, and what a person can do about it."""

    message: Message
    reason: str
    advice: str


def message_of(row: LogRow, sequence: int, previous: int) -> Message:
    """The message for `row`. Before it the stream is at `sequence`, and the log at position `previous`."""
    headers = {
        HEADER_EXPECTED: str(sequence),
        subjects.HEADER_MSG_ID: str(row.position),
        subjects.HEADER_POSITION: str(row.position),
        subjects.HEADER_PREVIOUS: str(previous),
        subjects.HEADER_TOPIC: row.topic,
        subjects.HEADER_VERSION: str(row.version),
    }
    trace = trace_of(row.state)
    if trace:
        headers[subjects.HEADER_TRACEPARENT] = trace
    return Message(row.position, subjects.event_subject(row.stream, row.topic), headers, row.state)


def obstacle_of(message: Message, bytes_max: int) -> Obstacle | None:
    """What keeps a bus that carries `bytes_max` bytes in a message from carrying this one; None where nothing does."""
    if _NO_SUBJECT.search(message.subject) or len(message.subject) > SUBJECT_MAX:
        return no_subject(message)
    if 2 * len(message.payload) + OWN_BYTES_MAX <= bytes_max:  # most messages need not be measured
        return None
    size_bytes = message.size_bytes
    if size_bytes > bytes_max:
        reason = f"the message takes {size_bytes} bytes with its headers, and the bus carries {bytes_max}"
        advice = f"let nats-server (max_payload) and EVENTS (max_msg_size) carry {size_bytes}; {RUNBOOK}"
        return Obstacle(message, reason, advice)
    return None


def no_subject(message: Message) -> Obstacle:
    return Obstacle(message, "no message can have this subject", f"no setting helps; {RUNBOOK}")


def trace_of(state: bytes) -> str | None:
    """The traceparent inside an encoded event; the scan is cheaper than decoding where there is none."""
    return _decode_trace(state).traceparent if b'"traceparent"' in state else None
