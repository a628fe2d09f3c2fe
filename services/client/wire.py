"""Wire: the port on which a client talks to the bus. `nats_wire` is it on NATS.

A client needs five things of a bus: one answer to one request, every answer to one question or to one request, a
wake-up when something was published, a stream read in order, and a store for what is too large for a message.
Failures are three, and they differ in what may have happened:

* `Unreachable`   no connection: nothing was sent.
* `NoResponder`   the server knows nobody who listens on the subject: nothing was received.
* `Silent`        nobody answered in time: it may have been carried out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct


class Unreachable(Exception):
    """There is no connection. `refused_login` is True where the server was there and turned us away."""

    def __init__(self, message: str, refused_login: bool = False) -> None:
        super().__init__(message)
        self.refused_login = refused_login


class NoResponder(Exception):
    """Nobody listens on this subject."""


class Silent(Exception):
    """No answer within the bound."""


class Published(Struct, frozen=True):
    """One message of a stream. `pending` counts what the stream still holds behind it for this reader."""

    subject: str
    data: bytes
    headers: dict[str, str]
    sequence: int
    pending: int


class Wakeups(Protocol):
    async def next(self, timeout_s: float) -> Published | None:
        """The next message, or None when `timeout_s` has passed. A hint: messages may be lost."""


class Wire(Protocol):
    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes: ...

    async def gather(
        self, subject: str, payload: bytes, timeout_s: float, enough: Callable[[bytes], bool]
    ) -> list[bytes]:
        """Every answer within the bound, stopping early at the first one for which `enough` holds."""

    def replies(self, subject: str, payload: bytes, timeout_s: float) -> AsyncGenerator[bytes]:
        """Reply after reply to one request, until the caller stops; Silent where none comes within `timeout_s`."""

    async def store(self, bucket: str, name: str, body: bytes) -> None:
        """Put an object into an object store; Unreachable where that can't be done.

        Where it failed or was cancelled, `discard` takes back what is there of it.
        """

    async def fetch(self, bucket: str, name: str) -> bytes:
        """Take an object out of an object store: it is gone afterwards. Unreachable where it can't be had."""

    async def discard(self, bucket: str, name: str) -> None:
        """Delete an object, or what is there of it. One that is gone is no error. Unreachable if that can't be done."""

    def wakeups(self, subject: str) -> AbstractAsyncContextManager[Wakeups]: ...

    def stream(self, stream: str, subject: str, start: int, follow: bool) -> AsyncIterator[Published]:
        """The messages from sequence `start` (negative: that many before the end); ends unless `follow`."""

    async def last(self, stream: str) -> int:
        """The newest sequence of a stream, 0 where it never had a message. Unreachable without the stream."""

    async def seek(self, stream: str, reached: Callable[[Published], bool]) -> int:
        """The first sequence for which `reached` holds, where it holds for all that follow."""

    async def close(self) -> None: ...
