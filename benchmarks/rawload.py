"""Load generators that cost little: the NATS protocol on a bare asyncio transport.

On two cores a generator built on a full client would take more of the machine than what it measures. These
send prepared PUB frames and look at as little of an answer as they need.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any, TypeVar
from urllib.parse import urlsplit

REPLY = b"_INBOX.bench.r"
_POSITION = re.compile(rb'"position":(\d+)')


class Raw(asyncio.Protocol):
    """Connects, subscribes, and hands each message to `on_message(subscription, data, start, end)`."""

    def __init__(self, url: str, subscriptions: dict[int, str]) -> None:
        parts = urlsplit(url)
        options = {"verbose": False, "pedantic": False, "user": parts.username, "pass": parts.password,
                   "protocol": 1, "name": "bench", "lang": "python", "version": "1"}  # fmt: skip
        subscribe = "".join(f"SUB {subject} {sid}\r\n" for sid, subject in subscriptions.items())
        self._hello = b"CONNECT " + json.dumps(options).encode() + b"\r\n" + subscribe.encode() + b"PING\r\n"
        self._buffer = b""
        self.ready = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def on_message(self, subscription: bytes, data: bytes, start: int, end: int) -> None:
        raise NotImplementedError

    def on_read(self) -> None:
        """After everything that came at once was handed over."""

    def data_received(self, data: bytes) -> None:
        data, at = self._buffer + data, 0
        while (line_end := data.find(b"\r\n", at)) >= 0:
            if data.startswith(b"MSG", at):
                words = data[at:line_end].split(b" ")
                start, end = line_end + 2, line_end + 2 + int(words[-1])
                if end + 2 > len(data):
                    break
                self.on_message(words[2], data, start, end)
                at = end + 2
                continue
            self._control(data[at:line_end])
            at = line_end + 2
        self._buffer = data[at:]
        self.on_read()

    def _control(self, line: bytes) -> None:
        if line.startswith(b"INFO"):
            self.transport.write(self._hello)
        elif line.startswith(b"PONG"):
            self.ready.set()
        elif line.startswith(b"PING"):
            self.transport.write(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise RuntimeError(line.decode())


def frame(subject: str, body: bytes) -> bytes:
    """A request whose answer comes to REPLY."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), REPLY, len(body), body)


class Saturate(Raw):
    """Keeps `window` commands outstanding until each of `bodies` has an answer; then `done` is set."""

    def __init__(self, url: str, subject: str, bodies: list[bytes], window: int) -> None:
        super().__init__(url, {1: REPLY.decode()})
        self._frames = [frame(subject, body) for body in bodies]
        self._window = window
        self._sent = self._got = self.answered = self.refused = 0
        self.done = asyncio.Event()

    def start(self) -> None:
        self._send(self._window)

    def on_message(self, subscription: bytes, data: bytes, start: int, end: int) -> None:
        self._got += 1
        if data.find(b'"outcome":"accepted"', start, start + 40) < 0:
            self.refused += 1

    def on_read(self) -> None:
        got, self._got = self._got, 0
        if got:
            self.answered += got
            self._send(got)
            if self.answered == len(self._frames):
                self.done.set()

    def _send(self, count: int) -> None:
        frames = self._frames[self._sent : self._sent + count]
        self._sent += len(frames)
        if frames:
            self.transport.write(b"".join(frames))


class Latency(Raw):
    """Times each command until its reply, and until the projection says it has reached the reply's position.

    Replies of one connection come in the order of its requests, so the n-th reply is to the n-th command.
    """

    def __init__(self, url: str, view: str, count: int) -> None:
        super().__init__(url, {1: REPLY.decode(), 2: view})
        self._count = count
        self._seen = 0
        self._waiting: list[tuple[int, float]] = []
        self.sent_s: list[float] = []
        self.reply_ms: list[float] = []
        self.visible_ms: list[float] = []
        self.done = asyncio.Event()

    def send(self, prepared: bytes) -> None:
        self.sent_s.append(time.perf_counter())
        self.transport.write(prepared)

    def on_message(self, subscription: bytes, data: bytes, start: int, end: int) -> None:
        now = time.perf_counter()
        if subscription == b"2":
            self._seen = max(self._seen, int(data[start:end]))
        else:
            found = _POSITION.search(data, start, end)
            if found is None:
                raise RuntimeError(data[start:end].decode())
            begun = self.sent_s[len(self.reply_ms)]
            self.reply_ms.append((now - begun) * 1000)
            self._waiting.append((int(found[1]), begun))
        while self._waiting and self._waiting[0][0] <= self._seen:
            self.visible_ms.append((now - self._waiting.pop(0)[1]) * 1000)
        if len(self.visible_ms) == self._count:
            self.done.set()


R = TypeVar("R", bound=Raw)


async def connected(load: R, url: str) -> R:
    """Open the connection of a generator; it is ready when this returns."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: load, parts.hostname or "127.0.0.1", parts.port or 4222)
    await asyncio.wait_for(load.ready.wait(), 10)
    return load
