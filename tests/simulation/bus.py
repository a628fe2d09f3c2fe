"""A simulated nats-server with JetStream, and a client that looks like nats-py's to the production code.

Only what Tenure uses is there. One suite (`tests/contract/test_bus.py`) holds this and the real server to the
same answers. Faults are asked of the story at each hop: delay, loss, duplication, a client cut off, a server
that restarts, a store that is wiped. Messages of one connection keep their order unless the story reorders.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
from collections import deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Protocol

import nats.errors
import nats.js.errors

from tests.simulation.loop import PROCESS, Process, SimLoop

ACK_WAIT_S = 10.0
REDELIVERY_TICK_S = 1.0


class Network(Protocol):
    """What the story decides about each message on its way."""

    def delay_s(self) -> float: ...

    def copies(self, process: Process, subject: str) -> int:
        """0 for a lost message, 1 for a good one, 2 for a duplicate."""

    def reorders(self) -> bool: ...

    def effect(self, process: Process | None, what: str) -> None:
        """Called before and after each effect; may kill the process."""


def matches(pattern: str, subject: str) -> bool:
    if "*" not in pattern and ">" not in pattern:
        return pattern == subject
    want, have = pattern.split("."), subject.split(".")
    for number, token in enumerate(want):
        if token == ">":
            return len(have) > number
        if number >= len(have) or token not in ("*", have[number]):
            return False
    return len(want) == len(have)


class Message:
    """As nats.aio.msg.Msg, as far as it is used."""

    def __init__(
        self, client: SimClient, subject: str, data: bytes, reply: str, headers: dict[str, str] | None
    ) -> None:
        self._client = client
        self.subject, self.data, self.reply, self.headers = subject, data, reply, headers
        self.pending: tuple[Consumer, int] | None = None

    async def respond(self, data: bytes) -> None:
        await self._client.publish(self.reply, data)

    async def ack(self) -> None:
        await self._settle(0.0)

    async def term(self) -> None:
        await self._settle(0.0)

    async def nak(self, delay: float = 0.0) -> None:
        await self._settle(None, delay)

    async def _settle(self, done: float | None, delay: float = 0.0) -> None:
        if self.pending is None:
            return
        consumer, sequence = self.pending
        self._client.bus.network.effect(PROCESS.get(), "ack")
        if self._client.is_connected and self._client.bus.network.copies(self._client.process, "ack"):
            if done is None:
                consumer.again(sequence, delay)
            else:
                consumer.done(sequence)


class Stream:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.subjects: list[str] = config["subjects"]
        self.messages: dict[int, tuple[str, bytes, dict[str, str] | None]] = {}
        self.last_sequence = 0
        self.consumers: dict[str, Consumer] = {}
        self.arrived = asyncio.Event()

    def store(self, subject: str, data: bytes, headers: dict[str, str] | None) -> int:
        if self.config.get("max_msgs_per_subject") == 1:
            for sequence in [s for s, held in self.messages.items() if held[0] == subject]:
                del self.messages[sequence]
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
        while self._next <= self.stream.last_sequence and len(found) < count:
            held = self.stream.messages.get(self._next)
            if held is not None and matches(self.pattern, held[0]):
                found.append((self._next, held))
            self._next += 1
        for sequence, _ in found:
            self._out[sequence] = now + self.ack_wait_s
        return found

    def done(self, sequence: int) -> None:
        self._out.pop(sequence, None)
        if self.stream.config.get("retention") == "workqueue":
            self.stream.messages.pop(sequence, None)

    def again(self, sequence: int, delay: float) -> None:
        if sequence in self._out:
            self._out[sequence] = self.bus.loop.time() + delay


class SimBus:
    """The server. It has no process: it never stops, but it can be cut off, restarted and wiped."""

    def __init__(self, loop: SimLoop, network: Network) -> None:
        self.loop, self.network = loop, network
        self.up = True
        self.streams: dict[str, Stream] = {}
        self.clients: list[SimClient] = []

    def wipe(self) -> None:
        """As a server that comes back with an empty store."""
        self.streams.clear()

    def route(self, sender: SimClient, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> bool:
        """Hand a message to whom it is for; False where nobody listens."""
        heard = False
        if subject.startswith("$JS.API.STREAM.CREATE."):
            config = json.loads(data)
            self.streams.setdefault(config["name"], Stream(config))
            return self.route(sender, reply, b"{}", "", None)
        for stream in self.streams.values():
            if any(matches(pattern, subject) for pattern in stream.subjects):
                heard = True
                ack = stream.take(subject, data, headers)
                if reply:
                    self.route(sender, reply, json.dumps(ack).encode(), "", None)
        for client in self.clients:
            for subscription in client.subscriptions:
                if matches(subscription.pattern, subject):
                    heard = True
                    client.deliver(subscription, subject, data, reply, headers)
        return heard

    def stream(self, name: str) -> Stream:
        if name not in self.streams:
            raise nats.js.errors.NotFoundError(code=404, description=f"stream {name} not found", err_code=10059)
        return self.streams[name]


class Subscription:
    def __init__(self, client: SimClient, pattern: str, callback: Callable[[Message], Awaitable[None]]) -> None:
        self.client, self.pattern, self.callback = client, pattern, callback
        self._queue: deque[Message] = deque()
        self._running = False
        self.context = contextvars.copy_context()

    async def unsubscribe(self, limit: int = 0) -> None:
        if self in self.client.subscriptions:
            self.client.subscriptions.remove(self)

    drain = unsubscribe

    def take(self, message: Message) -> None:
        self._queue.append(message)
        if not self._running:
            self._running = True
            asyncio.Task(self._drain(), loop=self.client.bus.loop, context=self.context)

    async def _drain(self) -> None:
        while self._queue:
            message = self._queue.popleft()
            try:
                await self.callback(message)
            except Exception as error:  # noqa: BLE001 - as nats-py: the error callback hears of it
                self.client.bus.loop.errors.append(f"{self.pattern}: {error!r}")
        self._running = False


class SimClient:
    """As nats.aio.client.Client, for one process."""

    _inboxes = itertools.count(1)

    def __init__(self, bus: SimBus, process: Process) -> None:
        self.bus, self.process = bus, process
        self.connected, self.closed = True, False
        self.subscriptions: list[Subscription] = []
        self._to_server: deque[tuple[str, bytes, str, dict[str, str] | None]] = deque()
        self._last_arrival_s = 0.0
        self._nuid = SimpleNamespace(next=lambda: bytearray(f"{next(self._inboxes)}".encode()))  # nats.micro asks
        bus.clients.append(self)
        process.on_kill.append(self._gone)

    @property
    def is_connected(self) -> bool:
        return self.connected and self.bus.up and not self.closed

    def _gone(self) -> None:
        self.closed = True
        self.subscriptions.clear()
        if self in self.bus.clients:
            self.bus.clients.remove(self)

    async def close(self) -> None:
        self._gone()

    async def flush(self, timeout: float = 10) -> None:
        await asyncio.sleep(self.bus.network.delay_s())

    def new_inbox(self) -> str:
        return f"_INBOX.{next(self._inboxes)}"

    async def subscribe(self, subject: str, queue: str = "", cb: Any = None) -> Subscription:
        subscription = Subscription(self, subject, cb)
        self.subscriptions.append(subscription)
        return subscription

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        if self.closed:
            raise nats.errors.ConnectionClosedError
        network = self.bus.network
        network.effect(PROCESS.get(), f"publish {subject}")
        if self.is_connected:
            for _ in range(network.copies(self.process, subject)):
                self._schedule(lambda: self._arrive(subject, payload, reply, headers))
        network.effect(PROCESS.get(), f"published {subject}")

    async def request(
        self, subject: str, payload: bytes = b"", timeout: float = 0.5, headers: dict[str, str] | None = None
    ) -> Message:
        if self.closed:
            raise nats.errors.ConnectionClosedError
        inbox = self.new_inbox()
        answered: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

        async def take(message: Message) -> None:
            if not answered.done():
                answered.set_result(message)

        subscription = await self.subscribe(inbox, cb=take)
        try:
            await self.publish(subject, payload, inbox, headers)
            if self.is_connected and not self._anybody(subject):
                raise nats.errors.NoRespondersError
            async with asyncio.timeout(timeout):
                message = await answered
        except TimeoutError:
            raise nats.errors.TimeoutError from None
        finally:
            await subscription.unsubscribe()
        assert message is not None
        return message

    def _anybody(self, subject: str) -> bool:
        patterns = [s.pattern for client in self.bus.clients for s in client.subscriptions]
        patterns += [pattern for stream in self.bus.streams.values() for pattern in stream.subjects]
        return subject.startswith("$JS") or any(matches(pattern, subject) for pattern in patterns)

    def _schedule(self, arrive: Callable[[], None]) -> None:
        loop, network = self.bus.loop, self.bus.network
        at = loop.time() + network.delay_s()
        if not network.reorders():
            at = max(at, self._last_arrival_s)  # one connection keeps its order
            self._last_arrival_s = at
        # In no process's context: what is on the wire arrives although its sender died.
        loop.call_at(at, arrive, context=_NOBODY)

    def _arrive(self, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> None:
        if self.bus.up and (self.connected or not self.process.alive):
            self.bus.route(self, subject, data, reply, headers)

    def deliver(
        self, subscription: Subscription, subject: str, data: bytes, reply: str, headers: dict[str, str] | None
    ) -> None:
        """From the server to this client."""
        network = self.bus.network

        def arrive() -> None:
            if self.is_connected and subscription in self.subscriptions:
                subscription.take(Message(self, subject, data, reply, headers))

        for _ in range(network.copies(self.process, subject)):
            self._schedule(arrive)

    def jetstream(self) -> JetStream:
        return JetStream(self)


_NOBODY = contextvars.Context()


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
        return SimpleNamespace(name=self._durable)

    async def unsubscribe(self) -> None:
        return None
