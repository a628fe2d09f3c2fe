"""JetStream, simulated: streams that keep messages, and pull consumers that deliver them until acknowledged."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors

from tests.simulation.wire import Message, matches

if TYPE_CHECKING:
    from tests.simulation.bus import SimBus, SimClient

ACK_WAIT_S = 10.0
REDELIVERY_TICK_S = 1.0


class Stream:
    def __init__(self, config: dict[str, Any], bus: SimBus) -> None:
        self.config = config
        self.bus = bus
        self.subjects: list[str] = config["subjects"]
        self.messages: dict[int, tuple[str, bytes, dict[str, str] | None]] = {}
        self.last_sequence = 0
        self.consumers: dict[str, Consumer] = {}
        self.arrived = asyncio.Event()

    def store(self, subject: str, data: bytes, headers: dict[str, str] | None) -> int:
        if self.config.get("max_msgs_per_subject") == 1:
            for sequence in [s for s, held in self.messages.items() if held[0] == subject]:
                del self.messages[sequence]
        self.bus.on_store(self.config["name"], not self.messages, subject, data, headers)
        self.last_sequence += 1
        self.messages[self.last_sequence] = (subject, data, headers)
        self.arrived.set()
        self.arrived = asyncio.Event()
        return self.last_sequence

    def take(self, subject: str, data: bytes, headers: dict[str, str] | None) -> dict[str, Any]:
        """Store a message that expects the stream to be where it is; the acknowledgement."""
        expected = (headers or {}).get("Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != self.last_sequence:
            description = f"wrong last sequence: {self.last_sequence}"
            return {"error": {"code": 400, "err_code": 10071, "description": description}, "seq": 0}
        return {"stream": self.config["name"], "seq": self.store(subject, data, headers)}

    def info(self) -> Any:
        first = min(self.messages, default=self.last_sequence + 1)
        limits = {"max_msgs": -1, "max_bytes": -1, "max_age": 0, **self.config}
        state = SimpleNamespace(messages=len(self.messages), first_seq=first, last_seq=self.last_sequence)
        return SimpleNamespace(config=SimpleNamespace(**limits), state=state)


class Consumer:
    """A durable pull consumer: what is delivered and not acknowledged comes again after the ack wait."""

    def __init__(self, bus: SimBus, stream: Stream, pattern: str, ack_wait_s: float) -> None:
        self.bus, self.stream, self.pattern, self.ack_wait_s = bus, stream, pattern, ack_wait_s
        self._next = 1
        self._out: dict[int, float] = {}  # sequence -> when it comes again

    def ready(self, count: int) -> list[tuple[int, tuple[str, bytes, dict[str, str] | None]]]:
        now, found = self.bus.loop.time(), []
        for sequence, again_at in list(self._out.items()):
            if again_at <= now and len(found) < count:
                held = self.stream.messages.get(sequence)
                if held is None:
                    del self._out[sequence]
                else:
                    found.append((sequence, held))
                    self.bus.on_redelivery(self.stream.config["name"])
        while self._next <= self.stream.last_sequence and len(found) < count:
            held = self.stream.messages.get(self._next)
            if held is not None and matches(self.pattern, held[0]):
                found.append((self._next, held))
            self._next += 1
        for sequence, _ in found:
            self._out[sequence] = now + self.ack_wait_s
        return found

    def pending(self) -> int:
        """How many were never delivered."""
        later = range(self._next, self.stream.last_sequence + 1)
        held = [self.stream.messages.get(sequence) for sequence in later]
        return sum(message is not None and matches(self.pattern, message[0]) for message in held)

    def done(self, sequence: int) -> None:
        self._out.pop(sequence, None)
        if self.stream.config.get("retention") == "workqueue":
            self.stream.messages.pop(sequence, None)

    def again(self, sequence: int, delay: float) -> None:
        if sequence in self._out:
            self._out[sequence] = self.bus.loop.time() + delay


class JetStream:
    def __init__(self, client: SimClient) -> None:
        self._client = client

    async def _hop(self) -> SimBus:
        """There and back: the management requests the production code makes now and then."""
        await asyncio.sleep(2 * self._client.bus.network.delay_s())
        if not self._client.is_connected:
            raise nats.errors.TimeoutError
        return self._client.bus

    async def streams_info(self) -> list[Any]:
        return [stream.info() for stream in (await self._hop()).streams.values()]

    async def stream_info(self, name: str) -> Any:
        return (await self._hop()).stream(name).info()

    async def get_msg(self, name: str, sequence: int) -> Any:
        stream = (await self._hop()).stream(name)
        if sequence not in stream.messages:
            raise nats.js.errors.NotFoundError(code=404, description="no message found", err_code=10037)
        subject, data, headers = stream.messages[sequence]
        return SimpleNamespace(subject=subject, data=data, headers=headers, seq=sequence)

    async def purge_stream(self, name: str) -> bool:
        (await self._hop()).stream(name).messages.clear()
        return True

    async def publish(
        self, subject: str, payload: bytes = b"", timeout: float = 5.0, headers: dict[str, str] | None = None
    ) -> Any:
        answer = await self._client.request(subject, payload, timeout=timeout, headers=headers)
        ack = json.loads(answer.data)
        if "error" in ack:
            raise nats.js.errors.APIError(**ack["error"])
        return SimpleNamespace(seq=ack["seq"])

    async def pull_subscribe(self, subject: str, durable: str, stream: str, config: Any = None) -> PullSubscription:
        held = (await self._hop()).stream(stream)
        ack_wait_s = float(getattr(config, "ack_wait", None) or ACK_WAIT_S)
        consumer = held.consumers.setdefault(durable, Consumer(self._client.bus, held, subject, ack_wait_s))
        return PullSubscription(self._client, stream, durable, consumer)


class PullSubscription:
    def __init__(self, client: SimClient, stream: str, durable: str, consumer: Consumer) -> None:
        self._client, self._stream, self._durable, self._consumer = client, stream, durable, consumer

    async def fetch(self, batch: int = 1, timeout: float = 5.0) -> list[Message]:
        bus, loop = self._client.bus, self._client.bus.loop
        ends = loop.time() + timeout
        while True:
            await asyncio.sleep(bus.network.delay_s())
            stream = bus.streams.get(self._stream)
            mine = stream is not None and stream.consumers.get(self._durable) is self._consumer
            if self._client.is_connected and mine and stream is not None:
                found = self._consumer.ready(batch)
                messages = [Message(self._client, s, d, "ack", h) for _, (s, d, h) in found]
                for message, (sequence, _) in zip(messages, found, strict=True):
                    message.pending = (self._consumer, sequence)
                if messages:
                    return messages
            if loop.time() >= ends:
                raise nats.errors.TimeoutError
            wait_s = min(ends - loop.time(), REDELIVERY_TICK_S)
            if stream is None or not mine:
                await asyncio.sleep(wait_s)
                continue
            try:
                async with asyncio.timeout(wait_s):
                    await stream.arrived.wait()
            except TimeoutError:
                continue

    async def consumer_info(self) -> Any:
        await asyncio.sleep(2 * self._client.bus.network.delay_s())
        if not self._client.is_connected:
            raise nats.errors.TimeoutError
        stream = self._client.bus.stream(self._stream)
        if stream.consumers.get(self._durable) is not self._consumer:
            raise nats.js.errors.NotFoundError(code=404, description="consumer not found", err_code=10014)
        return SimpleNamespace(name=self._durable, num_pending=self._consumer.pending())

    async def unsubscribe(self) -> None:
        return None
