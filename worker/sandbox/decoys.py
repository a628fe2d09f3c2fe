"""What a model process tries to reach and must not: listeners, files and a process outside, made for that.

An attempt at something that isn't there fails without any sandbox and proves nothing, so the worker
keeps these as long as it lives: a TCP port and a name server on the loopback, a port on the machine's own
address that is bound and does not listen, a socket with a path and one with an abstract name, a folder with
files, and a process that waits. The listeners close at once; nothing is open to the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import cast

from worker.sandbox.escape import NOT_A_PROGRAM, Targets

ANSWER = "192.0.2.1"  # an address of nobody, kept for documentation
READY_SECONDS_MAX = 10.0
END_SECONDS_MAX = 5.0
SECRET_BYTES = 16
_SOMEWHERE = ("192.0.2.1", 9)  # asked only for the way there; nothing is sent
_DNS_HEADER_BYTES = 12

# Waits for the end of its input, which comes when the worker ends, however that ends. It lets any process of its
# user trace it (PR_SET_PTRACER), so that the attempt works where the kernel's default is to allow parents only.
_WAITING = f"""
import ctypes, sys
secret = ctypes.create_string_buffer(b"s" * {SECRET_BYTES})
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
print(ctypes.addressof(secret), flush=True)
sys.stdin.read()
"""


async def _close_at_once(_: StreamReader, writer: StreamWriter) -> None:
    writer.close()


class _NameServer(asyncio.DatagramProtocol):
    """Answers every question with ANSWER; anything shorter than a question is let fall."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # as asyncio's own is typed, and not made

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        if len(data) <= _DNS_HEADER_BYTES:
            return
        header = data[:2] + b"\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00"
        record = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04" + socket.inet_aton(ANSWER)
        self._transport.sendto(header + data[_DNS_HEADER_BYTES:] + record, sender)


class Decoys:
    """`targets` tells a model process where they are. Open once per worker, close at its end."""

    def __init__(self, targets: Targets, opened: contextlib.AsyncExitStack) -> None:
        self.targets = targets
        self._opened = opened

    @classmethod
    async def open(cls, state: Path) -> Decoys:
        async with contextlib.AsyncExitStack() as stack:
            folder = state / "outside"
            _fill(folder)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            # A socket's path is short by the kernel's rule and the state folder's may be long.
            sockets = Path(tempfile.mkdtemp(prefix="tenure-outside-"))
            stack.callback(shutil.rmtree, sockets, ignore_errors=True)
            abstract = f"\0tenure-{secrets.token_hex(8)}"
            tcp = await asyncio.start_server(_close_at_once, "127.0.0.1", 0)
            unix = await asyncio.start_unix_server(_close_at_once, str(sockets / "s"))
            for server in (tcp, unix, await asyncio.start_unix_server(_close_at_once, abstract)):
                stack.push_async_callback(server.wait_closed)
                stack.callback(server.close)
            names, _ = await asyncio.get_running_loop().create_datagram_endpoint(_NameServer, ("127.0.0.1", 0))
            stack.callback(names.close)
            far = _far_port()
            if far is not None:
                stack.callback(far.close)
            process = await _waiting(stack)
            targets = Targets(
                tcp_port=tcp.sockets[0].getsockname()[1],
                udp_port=names.get_extra_info("sockname")[1],
                far_address=far.getsockname()[0] if far else "",
                far_port=far.getsockname()[1] if far else 0,
                unix_socket=str(sockets / "s"),
                abstract_socket=abstract,
                outside_folder=str(folder),
                outside_file=str(folder / "file"),
                not_a_program=str(folder / "not-a-program"),
                program=shutil.which("true", path="/bin:/usr/bin") or sys.executable,
                pid=process.pid,
                memory_address=int(await _first_line(process)),
                memory_bytes=SECRET_BYTES,
            )
            return cls(targets, stack.pop_all())
        raise RuntimeError("unreachable")

    async def close(self) -> None:
        await self._opened.aclose()


def _fill(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    (folder / "file").write_bytes(secrets.token_bytes(32))
    (folder / "not-a-program").write_bytes(NOT_A_PROGRAM)
    os.chmod(folder / "not-a-program", 0o700)


def _far_port() -> socket.socket | None:
    """A port on the address that this machine would speak from, taken and not listening; None without a way out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            asker.connect(_SOMEWHERE)
            address = asker.getsockname()[0]
        except OSError:
            return None
    if address.startswith("127."):
        return None
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        taken.bind((address, 0))
    except OSError:
        taken.close()
        return None
    return taken


async def _waiting(stack: contextlib.AsyncExitStack) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _WAITING),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    stack.push_async_callback(_end, process)
    return process


async def _first_line(process: asyncio.subprocess.Process) -> bytes:
    if process.stdout is None:
        raise RuntimeError("the waiting process has no output")
    async with asyncio.timeout(READY_SECONDS_MAX):
        return await process.stdout.readline()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
