"""Attempts to break out of the sandbox, made from inside it.

Each target is something that would work without the sandbox: the parent listens on the TCP port and the
datagram port, made the file and the socket outside, and the program exists. So an attempt that fails was
refused. `proven` needs every attempt to be made and refused; layers that are missing don't disprove it
and layers that were applied don't prove it.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable

from msgspec import Struct

from schemas.evidence import Attempt, OfflineProof
from worker.sandbox import kernel
from worker.sandbox.confinement import Applied

CONNECT_SECONDS_MAX = 2.0
_SYS_IO_URING_SETUP = 425


class Targets(Struct, frozen=True):
    """What the parent made outside for the child to fail at."""

    tcp_port: int
    udp_port: int
    unix_socket: str
    outside_file: str
    outside_folder: str
    program: str = "/bin/true"


def _tcp_connect(targets: Targets) -> str:
    with socket.create_connection(("127.0.0.1", targets.tcp_port), timeout=CONNECT_SECONDS_MAX):
        return "connected"


def _udp_send(targets: Targets) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"out", ("127.0.0.1", targets.udp_port))
    return "sent"


def _unix_connect(targets: Targets) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.settimeout(CONNECT_SECONDS_MAX)
        sender.connect(targets.unix_socket)
    return "connected"


def _netlink_socket(_: Targets) -> str:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0):
        return "made"


def _resolve_name(_: Targets) -> str:
    return f"resolved to {socket.getaddrinfo('localhost', 80)[0][4][0]}"


def _read_outside(targets: Targets) -> str:
    with open(targets.outside_file, "rb") as file:
        return f"read {len(file.read())} bytes"


def _read_system_file(_: Targets) -> str:
    with open("/etc/passwd", "rb") as file:
        return f"read {len(file.read())} bytes"


def _write_outside(targets: Targets) -> str:
    path = os.path.join(targets.outside_folder, f"escaped-{os.getpid()}")
    with open(path, "wb") as file:
        file.write(b"out")
    os.unlink(path)
    return "written"


def _run_program(targets: Targets) -> str:
    pid = os.posix_spawn(targets.program, [targets.program], {})
    os.waitpid(pid, 0)
    return "ran"


def _io_uring(_: Targets) -> str:
    parameters = ctypes.create_string_buffer(120)
    os.close(kernel.syscall(_SYS_IO_URING_SETUP, ctypes.c_uint(1), parameters))
    return "made"


ATTEMPTS: dict[str, Callable[[Targets], str]] = {
    "tcp_connect": _tcp_connect,
    "udp_send": _udp_send,
    "unix_connect": _unix_connect,
    "netlink_socket": _netlink_socket,
    "resolve_name": _resolve_name,
    "read_outside": _read_outside,
    "read_system_file": _read_system_file,
    "write_outside": _write_outside,
    "run_program": _run_program,
    "io_uring": _io_uring,
}


def attempt_all(applied: Applied, targets: Targets) -> OfflineProof:
    """Try everything once, from inside. Each attempt is bounded by CONNECT_SECONDS_MAX or fails at once."""
    attempts = [_attempt(action, targets) for action in ATTEMPTS]
    proven = len(attempts) == len(ATTEMPTS) and all(attempt.refused for attempt in attempts)
    return OfflineProof(applied=applied.applied, missing=applied.missing, attempts=attempts, proven=proven)


def _attempt(action: str, targets: Targets) -> Attempt:
    try:
        return Attempt(action=action, refused=False, detail=ATTEMPTS[action](targets))
    except socket.gaierror as error:
        return Attempt(action=action, refused=True, detail=f"name resolution failed: {error.strerror}")
    except OSError as error:
        return Attempt(action=action, refused=True, detail=kernel.reason(error))
