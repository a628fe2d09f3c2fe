"""Asking the control plane as a person does: again under the same id until there is an outcome.

A command goes by request or, at times, first over the durable stream, and its outcome is asked for by request under
the same id. Now and then it is sent once more afterwards, or its id is used for another body. That all of this has
one outcome is for the checkers to see.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import msgspec
import nats.errors
import nats.js.errors

from schemas import subjects
from schemas.codes import Code
from schemas.commands import RPC_ONLY
from schemas.replies import Reply
from tests.simulation.checkers import Violation

REQUEST_S = 1.0
PAUSE_S = 0.1
REFUSED_PAUSE_S = 0.5
NO_OUTCOME = frozenset({Code.UNAVAILABLE, Code.OVERLOADED, Code.CONFLICT})
DURABLE_SHARE = 0.15
REPEATED_SHARE = 0.1
OTHER_BODY_SHARE = 0.02


class Asker:
    def __init__(self, name: str, client: Any, rng: random.Random) -> None:
        self.name, self.nc, self._rng = name, client, rng
        self._number = 0
        self.waiting_for = "nothing"

    async def accepted(self, command: str, /, **fields: Any) -> dict[str, Any]:
        """Ask, as a new command each time, until it is accepted."""
        while True:
            reply = await self.command(command, **fields)
            if reply.outcome == "accepted":
                return reply.result
            await asyncio.sleep(REFUSED_PAUSE_S)

    async def command(self, command: str, /, **fields: Any) -> Reply:
        self._number += 1
        ident = f"{self.name}-{self._number}"
        body = {"command_id": ident, "actor": self.name, **fields}
        encoded = msgspec.json.encode(body)
        self.waiting_for = f"an outcome of {command}"
        if command not in RPC_ONLY and self._rng.random() < DURABLE_SHARE:
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, TimeoutError):
                await self.nc.jetstream().publish(f"{subjects.CMD}.{command}", encoded, timeout=REQUEST_S)
        reply = await self._outcome(command, encoded)
        while self._rng.random() < REPEATED_SHARE:
            await self._outcome(command, encoded)
        if self._rng.random() < OTHER_BODY_SHARE:
            other = await self._outcome(command, msgspec.json.encode({**body, "actor": "somebody-else"}))
            if other.code is not Code.DUPLICATE_COMMAND:
                raise Violation(f"command {ident} was used for another body, and the answer was {other}")
        return reply

    async def _outcome(self, command: str, body: bytes) -> Reply:
        while True:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                answer = await self.nc.request(subjects.rpc_subject(command), body, timeout=REQUEST_S)
                reply = msgspec.json.decode(answer.data, type=Reply)
                if reply.code not in NO_OUTCOME:
                    return reply
            await asyncio.sleep(PAUSE_S)
