"""What goes over the simulated wire: subjects, messages, and who decides what happens to each on its way."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

from tests.simulation.loop import PROCESS, Process

if TYPE_CHECKING:
    from tests.simulation.bus import SimClient
    from tests.simulation.jetstream import Consumer


MATCHES_KEPT = 16_384


class Network(Protocol):
    """What the story decides about each message on its way."""

    def delay_s(self) -> float: ...

    def copies(self, process: Process, subject: str) -> int:
        """0 for a lost message, 1 for a good one, 2 for a duplicate."""

    def reorders(self) -> bool: ...

    def effect(self, process: Process | None, what: str) -> None:
        """Called before and after each effect; may kill the process."""


@functools.lru_cache(maxsize=MATCHES_KEPT)
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
