"""Publish the log to EVENTS: each position once, in order, whatever was lost on the way.

The relay keeps no position of its own. It starts from the last message the stream holds, and publishes
each event with `Nats-Expected-Last-Sequence`, so the server itself refuses a gap, a repetition and a second
relay. Publishes are pipelined, a window at a time; if any of a window is not acknowledged as expected, the
relay asks the stream again where it stands and goes on from there. A wiped stream is filled from the start.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec
import nats.errors
import nats.js.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import Header

from schemas import subjects
from services.bus import ensure_streams
from services.eventlog.port import LogRow, LogUnavailable
from services.eventlog.tail import Tail

ACK_TIMEOUT_S = 5.0
RETRY_S = 0.5

log = structlog.get_logger()


class _PubAck(msgspec.Struct):
    """The part of JetStream's publish acknowledgement that is looked at."""

    seq: int = 0
    duplicate: bool = False
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
            if self._place is None:
                self._place = await self._find_place()
            rows = await self._tail.next(self._place.position)
            if rows:
                await self._publish(rows, self._place)
        except LogUnavailable as error:
            log.warning("relay.log_unavailable", error=str(error))
            await asyncio.sleep(RETRY_S)
        except (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError) as error:
            log.warning("relay.bus_unavailable", error=repr(error))
            self._place = None
            await asyncio.sleep(RETRY_S)

    async def _find_place(self) -> Place:
        await ensure_streams(self._nc)
        info = await self._js.stream_info(subjects.STREAM_EVENTS)
        if info.state.messages == 0:
            return Place(info.state.last_seq, 0)
        last = await self._js.get_msg(subjects.STREAM_EVENTS, info.state.last_seq)
        return Place(info.state.last_seq, int((last.headers or {})[subjects.HEADER_POSITION]))

    async def _publish(self, rows: list[LogRow], place: Place) -> None:
        window = self._window = _Window(place.sequence, len(rows))
        previous = place.position
        for number, row in enumerate(rows):
            headers = {
                subjects.HEADER_MSG_ID: str(row.position),
                Header.EXPECTED_LAST_SEQUENCE.value: str(place.sequence + number),
                subjects.HEADER_POSITION: str(row.position),
                subjects.HEADER_PREVIOUS: str(previous),
                subjects.HEADER_TOPIC: row.topic,
                subjects.HEADER_VERSION: str(row.version),
            }
            trace = trace_of(row.state)
            if trace:
                headers[subjects.HEADER_TRACEPARENT] = trace
            subject = subjects.event_subject(row.stream, row.topic)
            await self._nc.publish(subject, row.state, reply=f"{self._inbox}.{number}", headers=headers)
            previous = row.position
        async with asyncio.timeout(ACK_TIMEOUT_S):
            complete = await window.done
        if complete:
            self._place = Place(place.sequence + len(rows), rows[-1].position)
            self.published += len(rows)
        else:
            log.warning("relay.out_of_step", position=place.position, reason=window.reason)
            self._place = None

    async def _on_ack(self, message: Msg) -> None:
        if self._window is not None:
            self._window.take(int(message.subject.rpartition(".")[2]), message.data)


class _Window:
    """The acknowledgements of one pipelined batch."""

    def __init__(self, sequence: int, size: int) -> None:
        self._sequence = sequence
        self._open = set(range(size))
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.reason = ""

    def take(self, number: int, data: bytes) -> None:
        if self.done.done():
            return
        ack = _decode_ack(data)
        if ack.error is not None or ack.seq != self._sequence + number + 1:
            self.reason = str(ack.error or f"sequence {ack.seq} for number {number}")
            self.done.set_result(False)
            return
        self._open.discard(number)
        if not self._open:
            self.done.set_result(True)


def trace_of(state: bytes) -> str | None:
    """The traceparent inside an encoded event; the scan is cheaper than decoding where there is none."""
    return _decode_trace(state).traceparent if b'"traceparent"' in state else None
