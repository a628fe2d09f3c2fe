"""What a model process tries to reach and must not: listeners and a file outside its sandbox, made for that.

An attempt at something that isn't there fails without any sandbox and proves nothing, so the parent
keeps these open as long as it lives: a TCP and a datagram port on the loopback, a socket in the file
system, a file and a folder. The listeners accept and close at once.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import tempfile
from asyncio import StreamReader, StreamWriter
from pathlib import Path

from worker.sandbox.escape import Targets


async def _close_at_once(_: StreamReader, writer: StreamWriter) -> None:
    writer.close()


class Decoys:
    """`targets` tells a child where they are. Open once per worker, close at its end."""

    def __init__(self, targets: Targets, servers: list[asyncio.Server], udp: socket.socket, sockets: Path) -> None:
        self.targets = targets
        self._servers = servers
        self._udp = udp
        self._sockets = sockets

    @classmethod
    async def open(cls, state: Path) -> Decoys:
        canary = state / "outside"
        canary.write_bytes(secrets.token_bytes(32))
        tcp = await asyncio.start_server(_close_at_once, "127.0.0.1", 0)
        # A socket's path is short by the kernel's rule and the state folder's may be long.
        sockets = Path(tempfile.mkdtemp(prefix="tenure-outside-"))
        unix = await asyncio.start_unix_server(_close_at_once, str(sockets / "s"))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        targets = Targets(
            tcp_port=tcp.sockets[0].getsockname()[1],
            udp_port=udp.getsockname()[1],
            unix_socket=str(sockets / "s"),
            outside_file=str(canary),
            outside_folder=str(state),
        )
        return cls(targets, [tcp, unix], udp, sockets)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()
        self._udp.close()
        shutil.rmtree(self._sockets, ignore_errors=True)
