"""The parent's end of the link to a model process: requests out, answers in the order in which they come.

An answer is handed on in the very turn of the event loop in which its last byte arrived: there is no task that waits
for it and no stream that keeps it. Small frames are taken from one buffer, several to a read; a frame that doesn't fit
there is read into memory of its own, of its announced and bounded length. What goes out waits in the transport: at
most one request of each asker is under way, and each is bounded.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from worker.model import frames

BUFFER_BYTES = 256 * 1024


class Link(asyncio.BufferedProtocol):
    """`on_answer` gets each answer, `on_malformed` the reason why nothing more can be read. Made by `open` only."""

    def __init__(self, on_answer: Callable[[frames.Answer], None], on_malformed: Callable[[str], None]) -> None:
        self._on_answer = on_answer
        self._on_malformed = on_malformed
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0  # bytes of the buffer, or of the long frame while there is one
        self._long: memoryview | None = None  # the body of a frame that doesn't fit into the buffer

    @classmethod
    async def open(
        cls, end: socket.socket, on_answer: Callable[[frames.Answer], None], on_malformed: Callable[[str], None]
    ) -> Link:
        """Takes over the socket."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(on_answer, on_malformed), sock=end)
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: frames.Request) -> None:
        """Nothing where the other end has gone: whoever watches the process tells of its end."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frames.encode(request))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # What the event loop calls.

    def get_buffer(self, sizehint: int) -> memoryview:
        return (self._buffer if self._long is None else self._long)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            if self._long is None:
                self._take_frames()
            elif self._filled == len(self._long):
                body, self._long, self._filled = self._long, None, 0
                self._on_answer(frames.decode_answer(body))
        except ValueError as error:  # not one of our frames: nothing after it can be trusted
            self.close()
            self._on_malformed(str(error))

    def _take_frames(self) -> None:
        """Hand on the whole frames in the buffer; what is left of it begins with a frame."""
        at = 0
        while self._filled - at >= frames.LENGTH_BYTES:
            begin = at + frames.LENGTH_BYTES
            end = begin + frames.checked_length(self._buffer[at:begin])
            if end > self._filled:
                if end - begin > BUFFER_BYTES - frames.LENGTH_BYTES:
                    self._begin_long(begin, end)
                    return
                break
            at = end
            self._on_answer(frames.decode_answer(self._buffer[begin:end]))
        if at:
            self._buffer[: self._filled - at] = self._buffer[at : self._filled]
            self._filled -= at

    def _begin_long(self, begin: int, end: int) -> None:
        got = self._filled - begin
        self._long = memoryview(bytearray(end - begin))
        self._long[:got] = self._buffer[begin : self._filled]
        self._filled = got
