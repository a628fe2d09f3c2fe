"""Publish the log to EVENTS: each position once, in order, whatever was lost on the way.

The relay keeps no position of its own. It starts from the last message the stream holds, and each message
names the sequence it expects the stream to be at. So the server itself refuses a gap, a repetition and a
second relay: after one message that did not get there, no later one is taken. That is why only the last
message of a window asks for an acknowledgement; its sequence proves all of them. If it is not as expected,
the relay asks the stream where it stands and goes on from there. A wiped stream is filled from the start.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import NamedTuple

import msgspec
import nats.errors
import nats.js.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg, StreamConfig

from schemas import subjects
from services.bus import ensure_streams
from services.eventlog.port import LogRow, LogUnavailable
from services.eventlog.tail import Tail

ACK_TIMEOUT_S = 5.0
HEADER_EXPECTED = "Nats-Expected-Last-Sequence"
RETRY_S = 0.5
PACE_S = 0.01  # between two windows: a busy log goes out in fewer of them, and nobody waits for EVENTS
CHECK_S = 5.0  # how often a stream that seems in step is looked at; a purge leaves its last sequence

log = structlog.get_logger()


class _PubAck(msgspec.Struct):
    """The part of JetStream's publish acknowledgement that is looked at."""

    seq: int = 0
    error: dict[str, object] | None = None


_decode_ack = msgspec.json.Decoder(_PubAck).decode


class _Traced(msgspec.Struct):
    traceparent: str | None = None


_decode_trace = msgspec.json.Decoder(_Traced).decode


class Place(NamedTuple):
    """Where the stream stands: its last sequence and the log position of its last message."""

    sequence: int
    position: int


class Relay:
    def __init__(self, nc: Client, tail: Tail) -> None:
        self._nc = nc
        self._js = nc.jetstream()
        self._tail = tail
        self._place: Place | None = None
        self._check_at_s = 0.0
        self._inbox = nc.new_inbox()
        self._window: _Window | None = None
        self.published = 0

    async def start(self) -> None:
        await self._nc.subscribe(f"{self._inbox}.*", cb=self._on_ack)
        await self._tail.listen(self._nc)

    async def run(self) -> None:
        while True:
            await self.step()

    async def step(self) -> None:
        """Publish what is new, or find out where the stream stands, or wait a moment for servers to be back."""
        try:
            loop = asyncio.get_running_loop()
            if self._place is None or loop.time() >= self._check_at_s:
                self._place = await self._find_place()
                self._check_at_s = loop.time() + CHECK_S
            rows = await self._tail.next(self._place.position)
            if rows:
                await self._publish(rows, self._place)
                await asyncio.sleep(PACE_S)
        except LogUnavailable as error:
            log.warning("relay.log_unavailable", error=str(error))
            await asyncio.sleep(RETRY_S)
        except (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError) as error:
            log.warning("relay.bus_unavailable", error=repr(error))
            self._place = None
            await asyncio.sleep(RETRY_S)

    async def _find_place(self) -> Place:
        """Where the stream stands. One that has lost its beginning, and has no limits to explain it, is emptied."""
        await ensure_streams(self._nc)
        info = await self._js.stream_info(subjects.STREAM_EVENTS)
        if info.state.messages and not _limited(info.config):
            first = await self._js.get_msg(subjects.STREAM_EVENTS, info.state.first_seq)
            if _header(first, subjects.HEADER_PREVIOUS) != 0:
                log.warning("relay.beginning_lost", first_position=_header(first, subjects.HEADER_POSITION))
                await self._js.purge_stream(subjects.STREAM_EVENTS)
                return Place(info.state.last_seq, 0)
        if info.state.messages == 0:
            return Place(info.state.last_seq, 0)
        last = await self._js.get_msg(subjects.STREAM_EVENTS, info.state.last_seq)
        return Place(info.state.last_seq, _header(last, subjects.HEADER_POSITION))

    async def _publish(self, rows: list[LogRow], place: Place) -> None:
        window = self._window = _Window(place.sequence + len(rows))
        previous, last = place.position, len(rows) - 1
        for number, row in enumerate(rows):
            headers = {
                HEADER_EXPECTED: str(place.sequence + number),
                subjects.HEADER_MSG_ID: str(row.position),
                subjects.HEADER_POSITION: str(row.position),
                subjects.HEADER_PREVIOUS: str(previous),
                subjects.HEADER_TOPIC: row.topic,
                subjects.HEADER_VERSION: str(row.version),
            }
            trace = trace_of(row.state)
            if trace:
                headers[subjects.HEADER_TRACEPARENT] = trace
            subject = subjects.event_subject(row.stream, row.topic)
            reply = f"{self._inbox}.{window.ident}" if number == last else ""
            await self._nc.publish(subject, row.state, reply=reply, headers=headers)
            previous = row.position
        async with asyncio.timeout(ACK_TIMEOUT_S):
            complete = await window.done
        if complete:
            self._place = Place(place.sequence + len(rows), previous)
            self.published += len(rows)
        else:
            log.warning("relay.out_of_step", expected=window.sequence, reason=window.reason)
            self._place = None
            await asyncio.sleep(RETRY_S)

    async def _on_ack(self, message: Msg) -> None:
        if self._window is not None:
            self._window.take(message.subject.rpartition(".")[2], message.data)


class _Window:
    """The messages that are on their way, and the sequence that says all of them are there."""

    def __init__(self, sequence: int) -> None:
        self.ident = uuid.uuid4().hex
        self.sequence = sequence
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.reason = ""

    def take(self, ident: str, data: bytes) -> None:
        """An acknowledgement; one of an earlier window is not looked at."""
        if ident != self.ident or self.done.done():
            return
        ack = _decode_ack(data)
        if ack.error is not None or ack.seq != self.sequence:
            self.reason = str(ack.error or f"acknowledged at sequence {ack.seq}")
        self.done.set_result(not self.reason)


def _limited(config: StreamConfig) -> bool:
    """Whether an operator let the stream forget its oldest messages."""
    return any((limit or 0) > 0 for limit in (config.max_msgs, config.max_bytes, config.max_age))


def _header(message: RawStreamMsg, name: str) -> int:
    return int((message.headers or {})[name])


def trace_of(state: bytes) -> str | None:
    """The traceparent inside an encoded event; the scan is cheaper than decoding where there is none."""
    return _decode_trace(state).traceparent if b'"traceparent"' in state else None
