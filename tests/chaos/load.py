"""Commands that keep coming while something fails: each is sent until it has an outcome, under one id."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client

from schemas import subjects
from schemas.replies import Reply
from tests.chaos.waiting import WAIT_S, eventually

SHA = "ab" * 32
REQUEST_S = 2.0
SENDINGS_MAX = 60
PACE_S = 0.01


class Load:
    """Sends commands one after another until it is ended, by request and, where wanted, over the durable stream."""

    def __init__(self, nc: Client, *, durable: bool = True) -> None:
        self._nc = nc
        self._with_durable = durable
        self._name = uuid.uuid4().hex[:8]
        self.accepted: dict[str, int] = {}
        self.durable: set[str] = set()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def more(self, count: int) -> None:
        """Wait until that many more commands were accepted."""
        wanted = len(self.accepted) + count

        async def enough() -> bool:
            if self._task.done():
                self._task.result()
            return len(self.accepted) >= wanted

        await eventually(enough, f"{count} more commands are accepted")

    async def end(self) -> None:
        """No further commands; the ones under way get their outcome first."""
        self._stop.set()
        await asyncio.wait_for(self._task, WAIT_S)

    async def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            await self._request(f"rpc-{self._name}-{number}")
            if self._with_durable:
                await self._publish(f"cmd-{self._name}-{number}")
            await asyncio.sleep(PACE_S)

    async def _request(self, ident: str) -> None:
        body = self._body(ident)
        for _ in range(SENDINGS_MAX):
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                answer = await self._nc.request(subjects.rpc_subject("node.enrol"), body, timeout=REQUEST_S)
                reply = msgspec.json.decode(answer.data, type=Reply)
                if reply.outcome == "accepted":
                    self.accepted[ident] = reply.position or 0
                    return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{ident} got no outcome in {SENDINGS_MAX} sendings")

    async def _publish(self, ident: str) -> None:
        for _ in range(SENDINGS_MAX):
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError):
                await self._nc.jetstream().publish(f"{subjects.CMD}.node.enrol", self._body(ident), timeout=REQUEST_S)
                self.durable.add(ident)
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{ident} was not acknowledged in {SENDINGS_MAX} sendings")

    @staticmethod
    def _body(ident: str) -> bytes:
        return msgspec.json.encode({"command_id": ident, "actor": "chaos", "node_id": ident, "credential_sha256": SHA})
