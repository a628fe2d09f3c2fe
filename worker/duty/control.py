"""Asking the control plane: commands by request, and the heartbeat.

A reply is a value, accepted or rejected. `Unreachable` is raised where there was none in time (no responder,
no connection, no answer) or none that can be read; whether the command took effect is then unknown.
"""

from __future__ import annotations

import uuid
from typing import Protocol

import msgspec
import nats.errors
from nats.aio.client import Client

from schemas.commands import ClaimLease, Command
from schemas.live import Beat, BeatReply
from schemas.replies import Reply
from schemas.subjects import beat_subject, claim_subject, rpc_subject
from schemas.tokens import MESSAGE_BYTES_MAX


class Unreachable(Exception):
    """The control plane gave no answer; the message says how."""


class Control(Protocol):
    """What the worker asks of the control plane."""

    async def command(self, name: str, command: Command, timeout_ms: float) -> Reply: ...

    async def beat(self, beat: Beat, timeout_ms: float) -> BeatReply: ...


def new_command_id() -> str:
    return uuid.uuid4().hex


class NatsControl:
    """Control over NATS request-reply, JSON both ways."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def command(self, name: str, command: Command, timeout_ms: float) -> Reply:
        subject = claim_subject(command.node_id) if isinstance(command, ClaimLease) else rpc_subject(name)
        raw = await self._request(subject, msgspec.json.encode(command), timeout_ms)
        try:
            return msgspec.json.decode(raw, type=Reply)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the reply to {name} can't be read: {error}") from error

    async def beat(self, beat: Beat, timeout_ms: float) -> BeatReply:
        raw = await self._request(beat_subject(beat.node_id), msgspec.json.encode(beat), timeout_ms)
        try:
            return msgspec.json.decode(raw, type=BeatReply)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the reply to a beat can't be read: {error}") from error

    async def _request(self, subject: str, body: bytes, timeout_ms: float) -> bytes:
        if len(body) > MESSAGE_BYTES_MAX:
            raise ValueError(f"a message of {len(body)} bytes on {subject} is over the bound of {MESSAGE_BYTES_MAX}")
        if not self._client.is_connected:
            raise Unreachable("there is no connection to the bus")
        try:
            message = await self._client.request(subject, body, timeout=timeout_ms / 1_000.0)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise Unreachable(f"{subject}: {type(error).__name__}") from error
        return message.data
