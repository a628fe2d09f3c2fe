"""A load generator that costs little: the NATS protocol on a bare asyncio transport.

On two cores a generator built on a full client would take more of the machine than what it measures. This
one sends prepared PUB frames, at most `window` commands outstanding, and counts replies by their frames.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit


class RawLoad(asyncio.Protocol):
    """Sends `bodies` to `subject` as requests; `done` is set when each has an answer."""

    def __init__(self, url: str, subject: str, bodies: list[bytes], window: int) -> None:
        parts = urlsplit(url)
        options = {"verbose": False, "pedantic": False, "user": parts.username, "pass": parts.password,
                   "protocol": 1, "name": "bench", "lang": "python", "version": "1"}  # fmt: skip
        self._hello = b"CONNECT " + json.dumps(options).encode() + b"\r\nSUB _INBOX.bench.r 1\r\nPING\r\n"
        self._frames = [b"PUB %b _INBOX.bench.r %d\r\n%b\r\n" % (subject.encode(), len(body), body) for body in bodies]
        self._window = window
        self._sent = 0
        self._buffer = b""
        self.answered = 0
        self.refused = 0
        self.ready = asyncio.Event()
        self.done = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def start(self) -> None:
        self._send(self._window)

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data
        at, got = 0, 0
        while True:
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            if data.startswith(b"MSG", at):
                size = int(data[data.rfind(b" ", at, end) + 1 : end])
                stop = end + 2 + size + 2
                if stop > len(data):
                    break
                if data.find(b'"outcome":"accepted"', end, end + 40) < 0:
                    self.refused += 1
                got += 1
                at = stop
                continue
            if data.startswith(b"INFO", at):
                self._transport.write(self._hello)
            elif data.startswith(b"PONG", at):
                self.ready.set()
            elif data.startswith(b"PING", at):
                self._transport.write(b"PONG\r\n")
            elif data.startswith(b"-ERR", at):
                raise RuntimeError(data[at:end].decode())
            at = end + 2
        self._buffer = data[at:]
        if got:
            self.answered += got
            self._send(got)
            if self.answered == len(self._frames):
                self.done.set()

    def _send(self, count: int) -> None:
        frames = self._frames[self._sent : self._sent + count]
        self._sent += len(frames)
        if frames:
            self._transport.write(b"".join(frames))


async def open_load(url: str, subject: str, bodies: list[bytes], window: int) -> RawLoad:
    """A connected generator, not started yet."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(
        lambda: RawLoad(url, subject, bodies, window), parts.hostname or "127.0.0.1", parts.port or 4222
    )
    await asyncio.wait_for(protocol.ready.wait(), 10)
    return protocol
