"""Attempts to reach another process or machine over a socket."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket

from worker.sandbox import kernel
from worker.sandbox.escape import Ground, Unavailable

CONNECT_SECONDS_MAX = 0.5
ANSWER_SECONDS_MAX = 0.02
NAME = "outside.tenure.invalid"


def tcp_connect(ground: Ground) -> str:
    return _connect_tcp("127.0.0.1", ground.targets.tcp_port)


def tcp_connect_far(ground: Ground) -> str:
    """Nothing listens there, so that nothing is open to the network: a reset is what tells that it was reached."""
    if not ground.targets.far_address:
        raise Unavailable("this machine has no address but its loopback")
    with contextlib.suppress(ConnectionRefusedError):
        return _connect_tcp(ground.targets.far_address, ground.targets.far_port)
    return "reached, and nobody listened"


def _connect_tcp(address: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as caller:
        caller.settimeout(CONNECT_SECONDS_MAX)
        caller.connect((address, port))
    return "connected"


def tcp_bind(_: Ground) -> str:
    """Bound and not listening, so that outside nothing is open to the network either."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("", 0))
        return "bound"


def udp_send(ground: Ground) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"out", ("127.0.0.1", ground.targets.udp_port))
    return "sent"


def resolve_name(ground: Ground) -> str:
    """Ask the worker's own name server, as a resolver would. A question that leaves has got through."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.settimeout(ANSWER_SECONDS_MAX)
        asker.sendto(question(NAME), ("127.0.0.1", ground.targets.udp_port))
        try:
            answer = asker.recv(512)
        except TimeoutError:
            return "asked, without an answer in time"
    return f"resolved to {socket.inet_ntoa(answer[-4:])}"


def question(name: str) -> bytes:
    """A DNS query for the A record of `name`."""
    labels = b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split("."))
    return b"\x00\x07" + b"\x01\x00" + b"\x00\x01" + b"\x00\x00" * 3 + labels + b"\x00" + b"\x00\x01\x00\x01"


def unix_connect(ground: Ground) -> str:
    return _connect_unix(ground.targets.unix_socket)


def abstract_connect(ground: Ground) -> str:
    return _connect_unix(ground.targets.abstract_socket)


def _connect_unix(where: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.settimeout(CONNECT_SECONDS_MAX)
        sender.connect(where)
    return "connected"


def netlink_socket(_: Ground) -> str:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0):
        return "made"


def io_uring(_: Ground) -> str:
    """A ring makes and connects sockets without the calls that a filter sees."""
    parameters = ctypes.create_string_buffer(120)
    os.close(kernel.syscall(kernel.SYS_IO_URING_SETUP, ctypes.c_uint(1), parameters))
    return "made"
