"""Asking the control plane: commands by request, and the heartbeat.

A reply is a value, accepted or rejected. `Unreachable` is raised where there was none in time (no responder,
no connection, no answer) or none that can be read; whether the command took effect is then unknown. A command that
does not fit into a message is not sent, and rejected here.
"""

from __future__ import annotations

import uuid
from typing import Protocol

import msgspec
import nats.errors
from nats.aio.client import Client

from schemas.codes import ADVICE, Refusal
from schemas.commands import ClaimLease, Command
from schemas.live import Beat, BeatReply
from schemas.replies import Reply
from schemas.subjects import beat_subject, claim_subject, rpc_subject
from worker.duty.message_size import check_size


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
        try:
            raw = await self._request(subject, msgspec.json.encode(command), timeout_ms)
            return msgspec.json.decode(raw, type=Reply)
        except Refusal as refusal:
            code, message = refusal.code, refusal.message
            return Reply("rejected", command.command_id, code=code, message=message, advice=ADVICE[code])
        except msgspec.DecodeError as error:
            raise Unreachable(f"the reply to {name} can't be read: {error}") from error

    async def beat(self, beat: Beat, timeout_ms: float) -> BeatReply:
        try:
            raw = await self._request(beat_subject(beat.node_id), msgspec.json.encode(beat), timeout_ms)
            return msgspec.json.decode(raw, type=BeatReply)
        except Refusal as refusal:
            raise Unreachable(str(refusal)) from refusal
        except msgspec.DecodeError as error:
            raise Unreachable(f"the reply to a beat can't be read: {error}") from error

    async def _request(self, subject: str, body: bytes, timeout_ms: float) -> bytes:
        check_size(self._client, subject, body)
        if not self._client.is_connected:
            raise Unreachable("there is no connection to the bus")
        try:
            message = await self._client.request(subject, body, timeout=timeout_ms / 1_000.0)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise Unreachable(f"{subject}: {type(error).__name__}") from error
        return message.data
