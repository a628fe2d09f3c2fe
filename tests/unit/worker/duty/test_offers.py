"""Offers: what cannot be read or acknowledged is no reason to read no more."""

from __future__ import annotations

from typing import Any

import msgspec
import nats.errors

from schemas.work import Offer
from worker.duty.offers import OfferReader


class Delivered:
    subject = "tenure.work.v1.n1.w"

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self.data = data
        self._error = error

    async def ack(self) -> None:
        if self._error is not None:
            raise self._error


class Stream:
    """A bus whose consumer gives these messages once."""

    def __init__(self, *messages: Delivered) -> None:
        self._messages = list(messages)

    def jetstream(self) -> Stream:
        return self

    async def pull_subscribe(self, *_: Any, **__: Any) -> Stream:
        return self

    async def fetch(self, *_: Any, **__: Any) -> list[Delivered]:
        messages, self._messages = self._messages, []
        return messages


async def test_one_that_is_not_acknowledged_or_not_read_keeps_no_other() -> None:
    offers = [Offer(work_id, "n1", "verify", 1) for work_id in ("w1", "w2")]
    first, second = (msgspec.json.encode(offer) for offer in offers)
    stream: Any = Stream(
        Delivered(first, nats.errors.OutboundBufferLimitError()), Delivered(b"nonsense"), Delivered(second)
    )
    taken: list[Offer] = []

    def take(offer: Offer) -> bool:
        taken.append(offer)
        return True

    await OfferReader(stream, "n1", take).step()
    assert taken == offers
