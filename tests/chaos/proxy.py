"""A TCP proxy on loopback between one program and a server, so that a test can take the network away.

    proxy = Proxy(lambda: port_of_the_server)
    await proxy.start()           # then give the program `proxy.port`
    proxy.hold()                  # a partition: bytes wait, connections stay
    proxy.hold_at(b"lease.claim") # nothing passes from where these bytes come by, in that direction of that connection
    proxy.release()               # it heals: what waited is delivered, in order
    proxy.cut(), proxy.heal()     # connections are reset and new ones too; new ones are let through again
    proxy.delay_s = 0.1           # each way, for every connection

Held bytes of a program that has died are delivered all the same: packets under way arrive late. What waits is bounded
by HELD_CHUNKS_MAX per direction; beyond that the sender's own buffers fill, as with a network that is away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
HELD_CHUNKS_MAX = 4_096
CONNECT_S = 5.0


class _Way:
    """One direction of one connection."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.flowing = asyncio.Event()
        self.waiting: deque[tuple[float, bytes]] = deque()
        self._proxy, self._reader, self._writer = proxy, reader, writer
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False

    async def take(self) -> None:
        """Read what comes until the sender closes or is gone."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while chunk := await self._reader.read(CHUNK_BYTES):
                if self._proxy.stops_at(chunk):
                    self.flowing.clear()
                while len(self.waiting) >= HELD_CHUNKS_MAX:
                    self._room.clear()
                    await self._room.wait()
                self.waiting.append((loop.time() + self._proxy.delay_s, chunk))
                self._arrived.set()
        self._ended = True
        self._arrived.set()

    async def give(self) -> None:
        """Deliver it, in order and when it may go, then close."""
        loop = asyncio.get_running_loop()
        try:
            while self.waiting or not self._ended:
                if not self.waiting:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                await self.flowing.wait()
                due_s, chunk = self.waiting[0]
                if due_s > loop.time():
                    await asyncio.sleep(due_s - loop.time())
                    continue
                self._writer.write(chunk)
                await self._writer.drain()
                self.waiting.popleft()
                self._room.set()
        except OSError:
            self.waiting.clear()  # the receiver is gone
            self._room.set()
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


class Proxy:
    """`port_of` is asked at each new connection, so the server may come up later or elsewhere."""

    def __init__(self, port_of: Callable[[], int]) -> None:
        self.delay_s = 0.0
        self._port_of = port_of
        self._ways: list[_Way] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._hold_new = False
        self._cut = False
        self._hold_at: bytes | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        if self._server is None:
            raise RuntimeError("the proxy was not started")
        return int(self._server.sockets[0].getsockname()[1])

    def hold(self, *, new: bool = True) -> None:
        """Let nothing through on the present connections, and with `new` on later ones, until `release`."""
        self._hold_new = new
        for way in self._ways:
            way.flowing.clear()

    def hold_at(self, part: bytes) -> None:
        """Hold the direction of the connection in which these bytes come next, from them on, until `release`."""
        self._hold_at = part

    def stops_at(self, chunk: bytes) -> bool:
        if self._hold_at is None or self._hold_at not in chunk:
            return False
        self._hold_at = None
        return True

    def release(self) -> None:
        self._hold_new = False
        self._hold_at = None
        for way in self._ways:
            way.flowing.set()

    def cut(self) -> None:
        """Reset every connection, and each new one, until `heal`. What waited is lost."""
        self._cut = True
        for way in self._ways:
            way.abort()

    def heal(self) -> None:
        self._cut = False

    def holds(self, part: bytes) -> bool:
        """Whether these bytes wait to be delivered."""
        return any(part in chunk for chunk in self.held())

    def held(self) -> list[bytes]:
        """What waits to be delivered."""
        return [chunk for way in self._ways for _, chunk in way.waiting]

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self._port_of())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        try:
            async with asyncio.timeout(CONNECT_S):
                far_reader, far_writer = await self._open()
        except (OSError, TimeoutError):
            writer.transport.abort()
            return
        ways = [_Way(self, reader, far_writer), _Way(self, far_reader, writer)]
        self._ways += ways
        for way in ways:
            if not self._hold_new:
                way.flowing.set()
            for work in (way.take(), way.give()):
                task = asyncio.create_task(work)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
