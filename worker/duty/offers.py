"""Offers of work from the stream WORK, through this node's durable pull consumer.

An offer is a hint: it is acknowledged as soon as it's taken up or found to be known, because the lease and
not the message keeps the work from being forgotten. A consumer that is gone (server restarted, stream made
anew) is made again; until then, beats repeat open offers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.client import JetStreamContext

from schemas.subjects import STREAM_WORK, work_consumer, work_subject
from schemas.work import Offer

FETCH_MAX = 32
FETCH_SECONDS = 5.0
ACK_WAIT_SECONDS = 30.0
RETRY_SECONDS = 0.5
_log = structlog.get_logger(__name__)


class OfferReader:
    """Feeds `take` with this node's offers."""

    def __init__(self, client: Client, node_id: str, take: Callable[[Offer], bool]) -> None:
        self._client = client
        self._node_id = node_id
        self._take = take
        self._subscription: JetStreamContext.PullSubscription | None = None

    async def run(self) -> None:
        while True:
            await self.step()

    async def step(self) -> None:
        """One fetch. Whatever goes wrong with the consumer, it is made anew at the next step."""
        try:
            if self._subscription is None:
                self._subscription = await self._subscribe()
            messages = await self._subscription.fetch(FETCH_MAX, timeout=FETCH_SECONDS)
        except TimeoutError:
            return  # nothing was offered
        except Exception as error:  # noqa: BLE001 - the bus or the stream is away, in whichever way
            _log.warning("offers_unreadable", error=repr(error))
            await self.close()
            await asyncio.sleep(RETRY_SECONDS)
            return
        for message in messages:
            try:
                self._take(msgspec.json.decode(message.data, type=Offer))
            except msgspec.DecodeError as error:
                _log.warning("offer_malformed", subject=message.subject, error=str(error))
            try:
                await message.ack()
            except NatsError as error:  # it is offered again, which changes nothing
                _log.warning("offer_not_acknowledged", subject=message.subject, error=repr(error))

    async def _subscribe(self) -> JetStreamContext.PullSubscription:
        durable = work_consumer(self._node_id)
        subject = work_subject(self._node_id, ">")
        config = ConsumerConfig(
            name=durable,  # with it the client asks on a subject that has name and filter: all this node's login may
            durable_name=durable,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_SECONDS,
            deliver_policy=DeliverPolicy.ALL,
            filter_subject=subject,
        )
        return await self._client.jetstream().pull_subscribe(
            subject, durable=durable, stream=STREAM_WORK, config=config
        )

    async def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except Exception as error:  # noqa: BLE001 - the connection went first; the server forgets with it
                _log.debug("offers_unsubscribe_failed", error=repr(error))
