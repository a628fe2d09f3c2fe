"""The worker's side of a work lease: renew it in time, know when it is over. `claiming` gets it.

The control plane's term begins when it grants; the worker counts the same length from the moment it *sent*
the claim (or the renewal), which was earlier, and stops a margin before: so the worker's view of a lease
always ends first. A renewal is refused before half of the term has passed on the control plane's clock,
so it's sent a little after half, counted from when the last grant was *received*, which was later.

The holder trusts the lease while `local_ms() < valid_until_ms`. `keep` returns when it is lost: refused by
the control plane, or at its local end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from schemas.codes import Code
from schemas.commands import ReleaseLease, RenewLease
from schemas.replies import Reply
from schemas.work import WorkOrder
from worker.clock import local_ms
from worker.duty.control import Control, Unreachable, new_command_id

MARGIN_SHARE = 0.1  # of the term; at least MARGIN_MS_MIN
MARGIN_MS_MIN = 50.0
RENEW_SHARE = 0.52  # of the term, from when the grant was received
RETRY_SHARE = 0.04
REQUEST_MS_MAX = 5_000.0


class Lost(Struct, frozen=True):
    """Why a lease is over for this worker."""

    code: Code
    message: str


def margin_ms(term_ms: float) -> float:
    return max(term_ms * MARGIN_SHARE, MARGIN_MS_MIN)


class Lease:
    """One held lease. `order` is what the claim returned, token included."""

    def __init__(
        self,
        order: WorkOrder,
        sent_ms: float,
        received_ms: float,
        control: Control,
        node_id: str,
        clock: Callable[[], float] = local_ms,
    ) -> None:
        self.order = order
        self._control = control
        self._node_id = node_id
        self._clock = clock
        self._term_ms = float(order.lease_ms)
        self.valid_until_ms = sent_ms + self._term_ms - margin_ms(self._term_ms)
        self.renew_at_ms = received_ms + self._term_ms * RENEW_SHARE

    def is_valid(self) -> bool:
        return self._clock() < self.valid_until_ms

    async def keep(self) -> Lost:
        """Renew for as long as it takes; returns when the lease is lost."""
        while True:
            wake_ms = min(self.renew_at_ms, self.valid_until_ms)
            await asyncio.sleep(max(wake_ms - self._clock(), 0.0) / 1_000.0)
            lost = await self.step()
            if lost is not None:
                return lost

    async def step(self) -> Lost | None:
        """Renew if it's time, and say whether the lease is lost."""
        now_ms = self._clock()
        if now_ms >= self.valid_until_ms:
            return Lost(Code.LEASE_EXPIRED, "the lease could not be renewed in time")
        if now_ms < self.renew_at_ms:
            return None
        command = RenewLease(
            command_id=new_command_id(),
            actor=f"worker:{self._node_id}",
            work_id=self.order.work_id,
            generation=self.order.generation,
            attempt=self.order.attempt,
            token=self.order.token,
        )
        timeout_ms = min(self.valid_until_ms - now_ms, self._term_ms * MARGIN_SHARE * 2, REQUEST_MS_MAX)
        try:
            reply = await self._control.command("lease.renew", command, timeout_ms)
        except Unreachable:
            self.renew_at_ms = self._clock() + self._term_ms * RETRY_SHARE
            return None
        return self._take(reply, now_ms)

    def _take(self, reply: Reply, sent_ms: float) -> Lost | None:
        if reply.outcome == "accepted":
            term_ms = reply.result.get("lease_ms")
            if isinstance(term_ms, int) and term_ms > 0:
                self._term_ms = float(term_ms)
            self.valid_until_ms = sent_ms + self._term_ms - margin_ms(self._term_ms)
            self.renew_at_ms = self._clock() + self._term_ms * RENEW_SHARE
            return None
        if reply.code in {Code.LEASE_RENEWAL_EARLY, Code.OVERLOADED, Code.UNAVAILABLE, Code.CONFLICT}:
            self.renew_at_ms = self._clock() + self._term_ms * RETRY_SHARE
            return None
        return Lost(reply.code or Code.LEASE_ENDED, reply.message)

    async def release(self, reason: str) -> None:
        """Give the work back unfinished. Best effort: what isn't given back expires."""
        command = ReleaseLease(
            command_id=new_command_id(),
            actor=f"worker:{self._node_id}",
            work_id=self.order.work_id,
            generation=self.order.generation,
            attempt=self.order.attempt,
            token=self.order.token,
            reason=reason,
        )
        try:
            await self._control.command("lease.release", command, 1_000.0)
        except Unreachable:
            return
