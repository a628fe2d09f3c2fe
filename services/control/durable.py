"""A durable pull consumer that stays alive: COMMANDS and EVIDENCE are read with it.

A message is acknowledged by its handler once its outcome is committed; until then JetStream keeps it and
delivers it again after ACK_WAIT_S. At most IN_FLIGHT_MAX are out at a time. If the server loses the
consumer (a restart with an empty store, say), the next round makes the stream and the consumer again.

Messages go to whoever pulls. So one that may no longer lead pulls nothing: what its successor has granted it does not
know of, and would judge wrongly.

No progress is an alarm: where messages wait at the server and two fetches in a row brought none, that is
said as an error in the log and the consumer is asked for anew. `tenure doctor` looks for the same.
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

CONSUMER = "control"
BATCH = 500
WAIT_S = 5.0
ACK_WAIT_S = 10
IN_FLIGHT_MAX = 5_000
RETRY_S = 0.5

log = structlog.get_logger()


class DurableReader:
    def __init__(
        self,
        nc: Client,
        stream: str,
        subject: str,
        handle: Callable[[Msg], Awaitable[None]],
        may_take: Callable[[], bool],
    ) -> None:
        self._nc = nc
        self._js: JetStreamContext = nc.jetstream()
        self._stream = stream
        self._subject = subject
        self._handle = handle
        self._may_take = may_take
        self._subscription: JetStreamContext.PullSubscription | None = None
        self._stalled = False  # the last fetch brought nothing, though something was waiting

    async def run(self) -> None:
        try:
            while True:
                await self.step()
        finally:
            await self._drop()

    async def step(self) -> None:
        """One fetch, or one attempt to have a consumer again."""
        if not self._may_take():
            await self._drop()
            await asyncio.sleep(RETRY_S)
            return
        try:
            if self._subscription is None:
                await ensure_streams(self._nc)
                self._subscription = await self._js.pull_subscribe(
                    self._subject, durable=CONSUMER, stream=self._stream,
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
            await self._drop()
            await asyncio.sleep(RETRY_S)
            return
        self._stalled = False
        for message in messages:
            await self._handle(message)

    async def _still_there(self) -> None:
        """An idle fetch proves nothing: ask the server whether the consumer exists and whether anything waits."""
        if self._subscription is None:
            return
        try:
            waiting = (await self._subscription.consumer_info()).num_pending or 0
        except (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError) as error:
            log.warning("bus.consumer_lost", stream=self._stream, error=repr(error))
            await self._drop()
            return
        if waiting and self._stalled:
            log.error("bus.no_progress", stream=self._stream, waiting=waiting)
            await self._drop()
        self._stalled = bool(waiting)

    async def _drop(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:  # a pull left open would still be given messages
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()
