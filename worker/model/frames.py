"""What the parent and a model process say to each other, over a stream socket pair.

A frame is a 4-byte big-endian length and a MessagePack struct. The parent asks, the child answers each request once,
in order, but for `Stop`, which has no answer; `Partial`s come before the answer they belong to. `Refused` is the answer
to a request that failed in an expected way. Both sides bound the length before they read on. Neither side trusts the
other's pickles: there are none.
"""

from __future__ import annotations

import socket
import struct

import msgspec
from msgspec import Struct

from schemas.codes import Code
from schemas.evidence import Health, OfflineProof
from schemas.profiles import RuntimeProfile
from schemas.serving import PAYLOAD_BYTES_MAX
from worker.memory.allocator import AllocatorReading
from worker.sandbox.confinement import Policy
from worker.sandbox.escape import Targets

FRAME_BYTES_MAX = PAYLOAD_BYTES_MAX + 16 * 1024 * 1024
_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size


class Confine(Struct, frozen=True, tag="confine"):
    """Give up the network and the file system, then try to break out."""

    policy: Policy
    targets: Targets


class Source(Struct, frozen=True):
    """What answers: artifact and profile digests and the worker's generation."""

    artifact_id: str
    profile_id: str
    generation: str


class Prepare(Struct, frozen=True, tag="prepare"):
    """Import the runtime of this profile's adapter. No weights are read. `source` goes into each answer."""

    profile: RuntimeProfile
    source: Source


class Start(Struct, frozen=True, tag="start"):
    """Read the weights."""

    folder: str


class CheckHealth(Struct, frozen=True, tag="check_health"):
    """One small real inference; with `golden`, the profile's golden probes as well."""

    golden: bool = False


class Invoke(Struct, frozen=True, tag="invoke"):
    """Requests of the deployment's task, each as the bytes that the parent has decoded and admitted."""

    number: int
    requests: list[bytes]


class Stop(Struct, frozen=True, tag="stop"):
    """Nobody waits for this request of this Invoke any more. Has no answer, and none where it comes too late."""

    number: int
    index: int


class Unload(Struct, frozen=True, tag="unload"):
    """Drop the model and say what the allocator still holds; the process ends afterwards."""


class Confined(Struct, frozen=True, tag="confined"):
    proof: OfflineProof


class Prepared(Struct, frozen=True, tag="prepared"):
    versions: dict[str, str]
    allocator: AllocatorReading


class Facts(Struct, frozen=True, tag="facts"):
    """What the loaded runtime says of itself.

    `dimensions` and `max_length` are 0 where the task has none.
    """

    dimensions: int
    max_length: int
    parameters: int


class HealthSeen(Struct, frozen=True, tag="health_seen"):
    health: Health
    allocator: AllocatorReading


class Partial(Struct, frozen=True, tag="partial"):
    """Something on the way to an answer, as the bytes to pass on. No answer by itself."""

    number: int
    index: int
    body: bytes


class Early(Struct, frozen=True, tag="early"):
    """One request's answer ahead of the Batch, which has `Sent` in its place: together they would not fit a frame."""

    number: int
    index: int
    body: bytes


class Sent(Struct, frozen=True, tag="sent"):
    """In a Batch: this answer has gone ahead as `Early`."""


class Answered(Struct, frozen=True, tag="answered"):
    """One request's `schemas.serving.Answer`, as the bytes to pass on."""

    body: bytes


class Refused(Struct, frozen=True, tag="refused"):
    code: Code
    message: str


class Batch(Struct, frozen=True, tag="batch"):
    """The answers to an Invoke, one for each request."""

    answers: list[Answered | Refused | Sent]


class UnloadedModel(Struct, frozen=True, tag="unloaded_model"):
    """What the allocator held just before the model was dropped, and just after."""

    before: AllocatorReading
    after: AllocatorReading


Request = Confine | Prepare | Start | CheckHealth | Invoke | Stop | Unload
Answer = Confined | Prepared | Facts | HealthSeen | Partial | Early | Batch | UnloadedModel | Refused

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    body = _encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {len(body)} bytes is over the bound of {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + body


def checked_length(header: bytes | memoryview) -> int:
    """Of the body that follows. Raises ValueError over the bound."""
    length: int = _LENGTH.unpack(header)[0]
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes is over the bound of {FRAME_BYTES_MAX}")
    return length


def decode_answer(body: bytes | memoryview) -> Answer:
    """Raises ValueError where it is none."""
    return _answers.decode(body)


# The parent's side is `worker.model.link`. The child's side: blocking, one thread.


def receive_request(link: socket.socket) -> Request | None:
    """The next request, or None when the parent has closed the link."""
    header = _read(link, LENGTH_BYTES)
    if header is None:
        return None
    body = _read(link, checked_length(header))
    return None if body is None else _requests.decode(body)


def send_answer(link: socket.socket, answer: Answer) -> None:
    link.sendall(encode(answer))


def _read(link: socket.socket, count: int) -> bytes | None:
    buffer = bytearray(count)
    view = memoryview(buffer)
    filled = 0
    while filled < count:
        received = link.recv_into(view[filled:])
        if received == 0:
            return None
        filled += received
    return bytes(buffer)
