"""Publish the log to EVENTS: each position once, in order, whatever was lost on the way.

The relay keeps no position of its own. It starts from the last message the stream holds, and each message
names the sequence it expects the stream to be at. So the server itself refuses a gap, a repetition and a
second relay: after one message that did not get there, no later one is taken. That is why only the last
message of a window asks for an acknowledgement; its sequence proves all of them. If it is not as expected,
the relay asks the stream where it stands and goes on from there. A wiped stream is filled from the start.

What the bus can never carry stops the relay: EVENTS has every event in order, so none is passed over. It publishes all
before that one, says in its log what is in the way, again every TELL_S, and looks every LOOK_S whether it can go on.
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
from services.relay.message import Message, Obstacle, message_of, no_subject, obstacle_of

ACK_TIMEOUT_S = 5.0
RETRY_S = 0.5
PACE_S = 0.01  # between two windows: a busy log goes out in fewer of them, and nobody waits for EVENTS
CHECK_S = 5.0  # how often a stream that seems in step is looked at; a purge leaves its last sequence
LOOK_S = 5.0  # while an event cannot be carried: how often it is looked whether it can be now
TELL_S = 60.0  # and how often that is said
SUBJECT_SHOWN_MAX = 200  # characters
BYTES_MAX = 2**31 - 1  # no server has a higher limit

log = structlog.get_logger()


class _PubAck(msgspec.Struct):
    """The part of JetStream's publish acknowledgement that is looked at."""

    seq: int = 0
    error: dict[str, object] | None = None


_decode_ack = msgspec.json.Decoder(_PubAck).decode


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
        self._stream_bytes_max = BYTES_MAX  # what EVENTS takes in a message
        self._stopped_at: int | None = None  # the position that cannot be carried
        self._tell_at_s = 0.0
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
        limit = info.config.max_msg_size or 0
        self._stream_bytes_max = limit if limit > 0 else BYTES_MAX
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
        messages, obstacle = self._messages(rows, place)
        if not messages and obstacle is not None:
            await self._stop(obstacle)
            return
        window = self._window = _Window(place.sequence + len(messages))
        for message in messages:
            reply = f"{self._inbox}.{window.ident}" if message is messages[-1] else ""
            try:
                await self._nc.publish(message.subject, message.payload, reply=reply, headers=message.headers)
            except nats.errors.BadSubjectError:  # the client refuses more than we know of
                self._place = None  # nobody has acknowledged what went before
                await self._stop(no_subject(message))
                return
        async with asyncio.timeout(ACK_TIMEOUT_S):
            complete = await window.done
        if complete:
            self._place = Place(place.sequence + len(messages), messages[-1].position)
            self.published += len(messages)
            self._went_on(messages[-1].position)
        else:
            log.warning("relay.out_of_step", expected=window.sequence, reason=window.reason)
            self._place = None
            await asyncio.sleep(RETRY_S)

    def _messages(self, rows: list[LogRow], place: Place) -> tuple[list[Message], Obstacle | None]:
        """The messages for `rows` up to the first that the bus cannot carry, and what is in its way."""
        messages: list[Message] = []
        previous = place.position
        for row in rows:
            message = message_of(row, place.sequence + len(messages), previous)
            obstacle = obstacle_of(message, min(self._nc.max_payload, self._stream_bytes_max))
            if obstacle is not None:
                return messages, obstacle
            messages.append(message)
            previous = row.position
        return messages, None

    async def _stop(self, obstacle: Obstacle) -> None:
        """Say what is in the way, unless that was just said, and wait a while."""
        loop, message = asyncio.get_running_loop(), obstacle.message
        if self._stopped_at != message.position or loop.time() >= self._tell_at_s:
            self._stopped_at = message.position
            self._tell_at_s = loop.time() + TELL_S
            log.error(
                "relay.stopped", position=message.position, subject=message.subject[:SUBJECT_SHOWN_MAX],
                size_bytes=message.size_bytes, reason=obstacle.reason, advice=obstacle.advice,
            )  # fmt: skip
            # A client learns what its server carries when it connects, and not when an operator tells the server.
            reconnect = getattr(
                self._nc, "force_reconnect", None
            )  # nats-py 2.11 has none; the relay is restarted there
            if reconnect is not None and message.size_bytes > self._nc.max_payload:
                await reconnect()
        await asyncio.sleep(LOOK_S)

    def _went_on(self, position: int) -> None:
        if self._stopped_at is not None and position >= self._stopped_at:
            log.info("relay.goes_on", position=self._stopped_at)
            self._stopped_at = None

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
