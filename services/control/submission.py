"""Submissions: one command on its way to its outcome, what makes two of them the same, and how a refusal is told."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from schemas.codes import ADVICE, Code
from schemas.commands import Command
from schemas.replies import Reply

_encode = msgspec.json.Encoder().encode
Respond = Callable[[Reply], Awaitable[None]]


class Submission:
    """One command on its way. `receipt` is False for the control plane's own, which nobody sends twice."""

    __slots__ = ("_respond", "answered", "body_sha256", "command", "decisions", "receipt")

    def __init__(self, command: Command, respond: Respond, *, receipt: bool = True) -> None:
        self.command = command
        self.receipt = receipt
        self.decisions = 0
        self.answered = False
        self.body_sha256 = body_digest(command) if receipt else b""
        self._respond = respond

    async def respond(self, reply: Reply) -> None:
        """Give the outcome. Once: what fails later in the same group must not take back what was told."""
        if not self.answered:
            self.answered = True
            await self._respond(reply)


def body_digest(command: Command) -> bytes:
    """What makes two sendings the same command: type and every field but the trace, which each try may have anew."""
    body = _encode(msgspec.structs.replace(command, traceparent=None))
    return hashlib.sha256(type(command).__name__.encode() + b"\0" + body).digest()


def refusal(command: Command | None, code: Code, message: str, detail: dict[str, str] | None = None) -> Reply:
    """A rejection as the sender sees it, with the code's advice."""
    ident = command.command_id if command is not None else ""
    return Reply("rejected", ident, code=code, message=message, advice=ADVICE[code], detail=detail or {})
