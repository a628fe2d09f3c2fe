"""NatsWire: the client's bus port on a real NATS connection.

Quiet: connection trouble becomes one of the port's failures, never a line in the person's terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING

import nats
import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from services.client.wire import NoResponder, Published, Silent, Unreachable, Wakeups

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CONNECT_TIMEOUT_S = 2
CONNECT_ATTEMPTS_MAX = 4  # per server of the list; also what a broken connection is given
RECONNECT_WAIT_S = 0.25
DRAIN_TIMEOUT_S = 2.0
WAKE_PENDING_MAX = 1_024
REPLIES_PENDING_MAX = 65_536
PAYLOAD_TIMEOUT_S = 60.0
STREAM_IDLE_S = 0.25  # how long a reader waits before it asks itself whether the end was reached
STREAM_SILENCE_MAX_S = 15.0  # messages are known to be there and none comes


class _NatsWakeups:
    def __init__(self, queue: asyncio.Queue[Msg]) -> None:
        self._queue = queue

    async def next(self, timeout_s: float) -> Published | None:
        try:
            message = await asyncio.wait_for(self._queue.get(), timeout_s)
        except TimeoutError:
            return None
        return Published(message.subject, message.data, dict(message.headers or {}), 0, 0)


class _Source(io.BytesIO):
    """What is being stored. The library takes back what it has stored when reading fails, but not when cancelled."""

    stopped = False

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if self.stopped:
            raise OSError("nobody wants it stored any more")
        return super().readinto(buffer)


class NatsWire:
    """The port on a real NATS connection."""

    def __init__(self, connection: NatsClient) -> None:
        self._nats = connection
        self._storing: dict[tuple[str, str], tuple[_Source, asyncio.Task[None]]] = {}  # until done, or discarded

    @classmethod
    async def connect(cls, url: str, user: str | None, password: str | None, name: str) -> NatsWire:
        """Connect within a bounded time, or raise Unreachable with the reason in words."""
        trouble: list[Exception] = []

        async def remember(error: Exception) -> None:
            trouble.append(error)

        connection = NatsClient()
        try:
            await connection.connect(
                servers=url.split(","),
                user=user,
                password=password,
                name=name,
                error_cb=remember,
                connect_timeout=CONNECT_TIMEOUT_S,
                max_reconnect_attempts=CONNECT_ATTEMPTS_MAX,
                reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]
            )
        except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
            last = trouble[-1] if trouble else error
            refused = any("authorization" in str(seen).lower() for seen in [*trouble, error])
            reason = "it refused the login" if refused else _words(last)
            raise Unreachable(f"no connection to NATS at {url}: {reason}", refused) from error
        return cls(connection)

    @property
    def nats(self) -> NatsClient:
        return self._nats

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        try:
            answer = await self._nats.request(subject, payload, timeout=timeout_s)
        except nats.errors.NoRespondersError as error:
            raise NoResponder(subject) from error
        except (nats.errors.TimeoutError, TimeoutError) as error:
            raise Silent(subject) from error
        except nats.errors.Error as error:
            raise Unreachable(f"the connection to NATS broke: {_words(error)}") from error
        return answer.data

    async def gather(
        self, subject: str, payload: bytes, timeout_s: float, enough: Callable[[bytes], bool]
    ) -> list[bytes]:
        answers: list[bytes] = []
        ends = time.monotonic() + timeout_s
        inbox = self._nats.new_inbox()
        async with self.wakeups(inbox) as wakeups:
            await self._nats.publish(subject, payload, reply=inbox)
            while (left := ends - time.monotonic()) > 0:
                message = await wakeups.next(left)
                if message is None or message.headers.get("Status") == "503":
                    break
                answers.append(message.data)
                if enough(message.data):
                    break
        return answers

    async def replies(self, subject: str, payload: bytes, timeout_s: float) -> AsyncGenerator[bytes]:
        inbox = self._nats.new_inbox()
        try:
            subscription = await self._nats.subscribe(inbox, pending_msgs_limit=REPLIES_PENDING_MAX)
        except nats.errors.Error as error:
            raise Unreachable(f"the connection to NATS broke: {_words(error)}") from error
        try:
            await self._nats.publish(subject, payload, reply=inbox)
            while True:
                message = await subscription.next_msg(timeout=timeout_s)
                if (message.headers or {}).get("Status") == "503":
                    raise NoResponder(subject)
                yield message.data
        except (nats.errors.TimeoutError, TimeoutError) as error:
            raise Silent(subject) from error
        except nats.errors.Error as error:
            raise Unreachable(f"the connection to NATS broke: {_words(error)}") from error
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def store(self, bucket: str, name: str, body: bytes) -> None:
        source = _Source(body)
        putting = asyncio.create_task(self._put(bucket, name, source))
        self._storing[(bucket, name)] = source, putting
        try:
            async with asyncio.timeout(PAYLOAD_TIMEOUT_S):
                await asyncio.shield(putting)
            del self._storing[(bucket, name)]
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise Unreachable(f"the object store {bucket} takes nothing: {_words(error)}") from error
        finally:
            source.stopped = True

    async def _put(self, bucket: str, name: str, source: _Source) -> None:
        store = await self._nats.jetstream().object_store(bucket)
        await store.put(name, source)

    async def fetch(self, bucket: str, name: str) -> bytes:
        whole = io.BytesIO()  # the library's own buffer copies what it has for each chunk
        try:
            async with asyncio.timeout(PAYLOAD_TIMEOUT_S):
                store = await self._nats.jetstream().object_store(bucket)
                await store.get(name, writeinto=whole)
                with contextlib.suppress(nats.errors.Error, JetStreamError):  # it ends by age as well
                    await store.delete(name)
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise Unreachable(f"the object store {bucket} gives nothing: {_words(error)}") from error
        return whole.getvalue()

    async def discard(self, bucket: str, name: str) -> None:
        _, putting = self._storing.pop((bucket, name), (None, None))
        if putting is not None:  # it was stopped: what is there has no name before this ends
            with contextlib.suppress(nats.errors.Error, JetStreamError, TimeoutError, OSError):
                await asyncio.shield(putting)
        try:
            store = await self._nats.jetstream().object_store(bucket)
            with contextlib.suppress(NotFoundError):
                await store.delete(name)
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise Unreachable(f"the object store {bucket} takes nothing back: {_words(error)}") from error

    @contextlib.asynccontextmanager
    async def wakeups(self, subject: str) -> AsyncIterator[Wakeups]:
        queue: asyncio.Queue[Msg] = asyncio.Queue(WAKE_PENDING_MAX)

        async def put(message: Msg) -> None:
            with contextlib.suppress(asyncio.QueueFull):  # only a hint: whoever waits also looks by itself
                queue.put_nowait(message)

        try:
            subscription = await self._nats.subscribe(subject, cb=put)
        except nats.errors.Error as error:
            raise Unreachable(f"the connection to NATS broke: {_words(error)}") from error
        try:
            yield _NatsWakeups(queue)
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def stream(self, stream: str, subject: str, start: int, follow: bool) -> AsyncIterator[Published]:
        if start < 0:
            start = await self.last(stream) + start + 1
        jetstream = self._nats.jetstream()
        try:
            reader = await self._reader(jetstream, stream, subject, max(1, start))
            left = (await reader.consumer_info()).num_pending or 0
        except JetStreamError as error:
            raise Unreachable(f"stream {stream} cannot be read: {_words(error)}") from error
        except (nats.errors.Error, TimeoutError) as error:
            raise Unreachable(f"JetStream does not answer: {_words(error)}") from error
        silent_since = time.monotonic()
        try:
            while True:
                try:
                    message = await reader.next_msg(timeout=STREAM_IDLE_S)
                except (nats.errors.TimeoutError, TimeoutError):
                    if left == 0 and not follow:
                        return
                    if left > 0 and time.monotonic() - silent_since > STREAM_SILENCE_MAX_S:
                        raise Unreachable(f"stream {stream} stopped in the middle, {left} messages missing") from None
                    continue
                except nats.errors.Error as error:
                    raise Unreachable(f"the connection to NATS broke: {_words(error)}") from error
                silent_since = time.monotonic()
                place = message.metadata
                left = place.num_pending
                headers = dict(message.headers or {})
                yield Published(message.subject, message.data, headers, place.sequence.stream, left)
                if left == 0 and not follow:
                    return
        finally:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                await reader.unsubscribe()

    async def last(self, stream: str) -> int:
        try:
            return (await self._nats.jetstream().stream_info(stream)).state.last_seq
        except (nats.errors.Error, TimeoutError) as error:
            raise Unreachable(f"stream {stream} cannot be read: {_words(error)}") from error

    async def seek(self, stream: str, reached: Callable[[Published], bool]) -> int:
        jetstream = self._nats.jetstream()
        try:
            state = (await jetstream.stream_info(stream)).state
            low, high = max(1, state.first_seq), state.last_seq + 1
            while low < high:  # halves: at most 64 rounds
                middle = (low + high) // 2
                raw = await jetstream.get_msg(stream, middle)
                if reached(Published(raw.subject or "", raw.data or b"", dict(raw.headers or {}), middle, 0)):
                    high = middle
                else:
                    low = middle + 1
        except (nats.errors.Error, TimeoutError) as error:
            raise Unreachable(f"stream {stream} cannot be searched: {_words(error)}") from error
        return low

    @staticmethod
    async def _reader(
        jetstream: JetStreamContext, stream: str, subject: str, start: int
    ) -> JetStreamContext.PushSubscription:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start)
        return await jetstream.subscribe(subject, stream=stream, ordered_consumer=True, config=config)

    async def close(self) -> None:
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            await asyncio.wait_for(self._nats.close(), DRAIN_TIMEOUT_S)


def _words(error: Exception) -> str:
    """The error as a person would say it."""
    text = str(error).removeprefix("nats: ").strip()
    return text or type(error).__name__
