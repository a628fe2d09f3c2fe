"""What fits into one message: by Tenure's own bound, and by the bus's.

nats-server closes a connection on which a message over its `max_payload` comes, and counts headers in. nats-py checks
the body alone. So what has headers, or may grow, is checked here before it is published.
"""

from __future__ import annotations

from collections.abc import Mapping

from nats.aio.client import Client

from schemas.codes import Code, Refusal
from schemas.tokens import MESSAGE_BYTES_MAX

_FIRST_LINE = "NATS/1.0\r\n"


def message_bytes(body: bytes, headers: Mapping[str, str] | None = None) -> int:
    """What counts against `max_payload`."""
    if headers is None:
        return len(body)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return len(body) + len(f"{_FIRST_LINE}{lines}\r\n".encode())


def check_size(client: Client, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    """Raises Refusal where the message may not be sent."""
    size, bound = message_bytes(body, headers), min(MESSAGE_BYTES_MAX, client.max_payload)
    if size > bound:
        why = "Tenure's own bound" if bound == MESSAGE_BYTES_MAX else "max_payload of the NATS server; raise that"
        raise Refusal(
            Code.MESSAGE_TOO_LARGE, f"a message of {size} bytes on {subject} is over {bound} bytes, which is {why}"
        )
