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
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import nats.errors
import nats.js.errors

from tests.simulation.jetstream import JetStream, Stream
from tests.simulation.loop import PROCESS, Process, SimLoop
from tests.simulation.wire import Message, Network, matches

INBOX = "_INBOX"


class SimBus:
    """The server. It has no process: it never stops, but it can be cut off, restarted and wiped."""

    def __init__(self, loop: SimLoop, network: Network) -> None:
        self.loop, self.network = loop, network
        self.up = True
        self.streams: dict[str, Stream] = {}
        self.clients: list[SimClient] = []
        self._subscriptions: list[Subscription] = []
        self.on_store: Callable[[str, bool, str, bytes, dict[str, str] | None], None] = lambda *_: None
        self.on_redelivery: Callable[[str], None] = lambda _: None
        self._inboxes: defaultdict[str, list[Subscription]] = defaultdict(list)

    def wipe(self) -> None:
        """As a server that comes back with an empty store."""
        self.streams.clear()

    def route(self, sender: SimClient, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> bool:
        """Hand a message to whom it is for; False where nobody listens."""
        heard = False
        if subject.startswith("$JS.API.STREAM.CREATE."):
            config = json.loads(data)
            self.streams.setdefault(config["name"], Stream(config, self))
            return self.route(sender, reply, b"{}", "", None)
        for stream in self.streams.values():
            if any(matches(pattern, subject) for pattern in stream.subjects):
                heard = True
                ack = stream.take(subject, data, headers)
                if reply:
                    self.route(sender, reply, json.dumps(ack).encode(), "", None)
        for subscription in self.listening(subject):
            heard = True
            subscription.client.deliver(subscription, subject, data, reply, headers)
        return heard

    def listening(self, subject: str) -> list[Subscription]:
        """The subscriptions that a message on this subject is for, in the order in which they were made."""
        return [each for each in self._listed(subject) if matches(each.pattern, subject)]

    def add(self, subscription: Subscription) -> None:
        self._listed(subscription.pattern).append(subscription)

    def remove(self, subscription: Subscription) -> None:
        listed = self._listed(subscription.pattern)
        if subscription in listed:
            listed.remove(subscription)

    def _listed(self, subject: str) -> list[Subscription]:
        """Inboxes are kept apart: each is for one message or two, and all others would be asked about those."""
        if not subject.startswith(INBOX):
            return self._subscriptions
        return self._inboxes[".".join(subject.split(".", 2)[:2])]

    def stream(self, name: str) -> Stream:
        if name not in self.streams:
            raise nats.js.errors.NotFoundError(code=404, description=f"stream {name} not found", err_code=10059)
        return self.streams[name]


class Subscription:
    def __init__(self, client: SimClient, pattern: str, callback: Callable[[Message], Awaitable[None]]) -> None:
        self.client, self.pattern, self.callback = client, pattern, callback
        self._queue: deque[Message] = deque()
        self._running = False
        self.closed = False
        self.context = contextvars.copy_context()

    async def unsubscribe(self, limit: int = 0) -> None:
        self.closed = True
        self.client.subscriptions.discard(self)
        self.client.bus.remove(self)

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

    max_payload = 1024 * 1024
    last_error: Exception | None = None
    _inboxes = itertools.count(1)

    def __init__(self, bus: SimBus, process: Process) -> None:
        self.bus, self.process = bus, process
        self.connected, self.closed = True, False
        self.subscriptions: set[Subscription] = set()
        self._last_arrival_s = 0.0
        self._nuid = SimpleNamespace(next=lambda: bytearray(f"{next(self._inboxes)}".encode()))  # nats.micro asks
        bus.clients.append(self)
        process.on_kill.append(self._gone)

    @property
    def is_connected(self) -> bool:
        return self.connected and self.bus.up and not self.closed

    @property
    def is_closed(self) -> bool:
        return self.closed

    def _gone(self) -> None:
        self.closed = True
        for subscription in self.subscriptions:
            subscription.closed = True
            self.bus.remove(subscription)
        self.subscriptions.clear()
        if self in self.bus.clients:
            self.bus.clients.remove(self)

    async def close(self) -> None:
        self._gone()

    async def flush(self, timeout: float = 10) -> None:
        await asyncio.sleep(self.bus.network.delay_s())

    def new_inbox(self) -> str:
        return f"{INBOX}.{next(self._inboxes)}"

    async def subscribe(self, subject: str, queue: str = "", cb: Any = None) -> Subscription:
        subscription = Subscription(self, subject, cb)
        self.subscriptions.add(subscription)
        self.bus.add(subscription)
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
        kept = (pattern for stream in self.bus.streams.values() for pattern in stream.subjects)
        return (
            subject.startswith("$JS")
            or bool(self.bus.listening(subject))
            or any(matches(pattern, subject) for pattern in kept)
        )

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
            if self.is_connected and not subscription.closed:
                subscription.take(Message(self, subject, data, reply, headers))

        for _ in range(network.copies(self.process, subject)):
            self._schedule(arrive)

    def jetstream(self) -> JetStream:
        return JetStream(self)


_NOBODY = contextvars.Context()
