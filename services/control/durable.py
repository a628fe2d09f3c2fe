"""A durable pull consumer that stays alive: COMMANDS and EVIDENCE are read with it.

A message is acknowledged by its handler once its outcome is committed; until then JetStream keeps it and
delivers it again after ACK_WAIT_S. At most IN_FLIGHT_MAX are out at a time. If the server loses the
consumer (a restart with an empty store, say), the next round makes the stream and the consumer again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import nats.errors
import nats.js.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from services.bus import ensure_streams

BATCH = 500
WAIT_S = 5.0
ACK_WAIT_S = 10
IN_FLIGHT_MAX = 5_000
RETRY_S = 0.5

log = structlog.get_logger()


class DurableReader:
    def __init__(self, nc: Client, stream: str, subject: str, handle: Callable[[Msg], Awaitable[None]]) -> None:
        self._nc = nc
        self._js: JetStreamContext = nc.jetstream()
        self._stream = stream
        self._subject = subject
        self._handle = handle
        self._subscription: JetStreamContext.PullSubscription | None = None

    async def run(self) -> None:
        try:
            while True:
                await self.step()
        finally:
            if self._subscription is not None:  # a pull left open would still be given messages
                with contextlib.suppress(nats.errors.Error):
                    await self._subscription.unsubscribe()

    async def step(self) -> None:
        """One fetch, or one attempt to have a consumer again."""
        try:
            if self._subscription is None:
                await ensure_streams(self._nc)
                self._subscription = await self._js.pull_subscribe(
                    self._subject, durable="control", stream=self._stream,
                    config=ConsumerConfig(
                        ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S, max_ack_pending=IN_FLIGHT_MAX
                    ),
                )  # fmt: skip
            messages = await self._subscription.fetch(BATCH, timeout=WAIT_S)
        except (TimeoutError, nats.errors.TimeoutError):
            await self._still_there()
            return
        except (nats.errors.Error, nats.js.errors.Error, OSError) as error:
            log.warning("bus.consumer_lost", stream=self._stream, error=repr(error))
            self._subscription = None
            await asyncio.sleep(RETRY_S)
            return
        for message in messages:
            await self._handle(message)

    async def _still_there(self) -> None:
        """An idle fetch proves nothing: ask the server whether the consumer exists."""
        if self._subscription is None:
            return
        try:
            await self._subscription.consumer_info()
        except (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError):
            self._subscription = None
