"""Claiming the lease of one work item, until an answer is heard that decides it.

A token is told once. An answer that got lost, or that was repeated without it, leaves a lease that nobody can use and
nobody else can have before its term is over. So an unheard claim is made again. While nothing at all is heard, the
same command is sent: it has one outcome, however often it arrives, so that a control plane that is only slow grants one
attempt. Where that outcome was a grant whose token was told to nobody, or the silence lasts, a new command follows,
measured anew: the control plane ends what it had granted to the same generation and grants the next attempt, or says
that the work was cancelled meanwhile.

The pause between two sendings grows. After about one term of a lease the work is given up: heartbeats offer it again
once nobody holds it. Any other answer decides it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from msgspec import Struct

from schemas.codes import Code
from schemas.commands import ClaimLease
from schemas.devices import DeviceReading
from schemas.replies import Reply
from schemas.work import WorkOrder
from worker.clock import local_ms
from worker.duty.control import Control, Unreachable, new_command_id
from worker.duty.leases import REQUEST_MS_MAX, Lease, Lost

SENDINGS_MAX = 3  # of one command, whose measurement gets no younger
PAUSE_MS_MIN = 100.0
PAUSE_MS_MAX = 2_000.0
_ASK_AGAIN = frozenset({Code.UNAVAILABLE, Code.OVERLOADED, Code.CONFLICT})  # no word on whether it was granted
_log = structlog.get_logger(__name__)

Measure = Callable[[], Awaitable[list[DeviceReading]]]


async def nothing_measured() -> list[DeviceReading]:
    """For work that needs no device."""
    return []


class Unheard(Struct, frozen=True):
    """No answer that decides the claim. `spent` is True where sending the same command again can tell no more."""

    reason: str
    spent: bool = False


class Claim:
    """One work item that this worker wants the lease of. `measure` tells what devices have free at that moment."""

    def __init__(
        self,
        control: Control,
        work_id: str,
        node_id: str,
        generation: str,
        lease_ms: float,
        measure: Measure = nothing_measured,
        clock: Callable[[], float] = local_ms,
    ) -> None:
        self._control = control
        self._work_id, self._node_id, self._generation = work_id, node_id, generation
        self._lease_ms = lease_ms
        self._measure = measure
        self._clock = clock
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Do not wait for the next try: it will hear of the end of the work."""
        self._hurry.set()

    async def run(self) -> Lease | Lost:
        """The lease, or why there is none."""
        gives_up_ms = self._clock() + self._lease_ms
        pause_ms = PAUSE_MS_MIN
        command, sendings = await self._command(), 0
        while True:
            answer = await self._send(command)
            if not isinstance(answer, Unheard):
                return answer
            sendings += 1
            _log.info("claim_unheard", work_id=self._work_id, command_id=command.command_id, reason=answer.reason)
            if self._clock() + pause_ms >= gives_up_ms:
                return Lost(Code.UNAVAILABLE, f"no answer to the claim was heard for a lease's term: {answer.reason}")
            await self._pause(pause_ms)
            pause_ms = min(pause_ms * 2, PAUSE_MS_MAX)
            if answer.spent or sendings >= SENDINGS_MAX:
                command, sendings = await self._command(), 0

    async def _pause(self, pause_ms: float) -> None:
        try:
            async with asyncio.timeout(pause_ms / 1_000.0):
                await self._hurry.wait()
        except TimeoutError:
            return
        self._hurry.clear()

    async def _command(self) -> ClaimLease:
        return ClaimLease(
            command_id=new_command_id(),
            actor=f"worker:{self._node_id}",
            work_id=self._work_id,
            node_id=self._node_id,
            generation=self._generation,
            devices=await self._measure(),
        )

    async def _send(self, command: ClaimLease) -> Lease | Lost | Unheard:
        sent_ms = self._clock()
        try:
            reply = await self._control.command("lease.claim", command, REQUEST_MS_MAX)
        except Unreachable as error:
            return Unheard(str(error))
        if reply.outcome == "rejected":
            code = reply.code or Code.INTERNAL_ERROR
            return Unheard(f"{code}: {reply.message}") if code in _ASK_AGAIN else Lost(code, reply.message)
        return _not_admitted(reply) or self._lease(reply, sent_ms)

    def _lease(self, reply: Reply, sent_ms: float) -> Lease | Lost | Unheard:
        if not reply.result.get("token"):
            return Unheard("it was granted, and the token was told before", spent=True)
        try:
            order = msgspec.convert(reply.result, WorkOrder)
        except msgspec.ValidationError as error:
            return Lost(Code.INTERNAL_ERROR, f"the granted order can't be read: {error}")
        return Lease(order, sent_ms, self._clock(), self._control, self._node_id, self._clock)


def _not_admitted(reply: Reply) -> Lost | None:
    """The refusal in an accepted reply: the claim took effect, by ending work that does not fit."""
    code = reply.result.get("refused")
    if code is None:
        return None
    known = Code(code) if code in Code.__members__ else Code.INTERNAL_ERROR
    return Lost(known, str(reply.result.get("message", "")))
