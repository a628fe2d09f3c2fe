"""From offers to statements: claims what is offered, runs it under its lease, ends it when the lease ends.

An offer is a hint. It is ignored while the same attempt of the work is in hand or its result was given,
so redelivery changes nothing; it waits for a free slot before it is claimed, because a lease should not
run while nothing is done for it. Kinds that read files or load models share SLOTS_HEAVY; the others answer
at once.

Work ends early for four reasons, and only the first is evidence: it was cancelled (WorkCancelled), its
lease was lost (nothing: what a lapsed lease brings forth does not count), the worker stops (the lease is
given back), the session ended (nothing).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Literal

import structlog
from msgspec import Struct

from schemas.codes import Code, Refusal
from schemas.evidence import Progress, Statement, WorkCancelled, WorkFailed
from schemas.tokens import OPEN_WORK_PER_NODE_MAX
from schemas.work import Offer, WorkKind
from worker.cancellation import end_tasks
from worker.duty.claiming import Claim, Measure, nothing_measured
from worker.duty.control import Control
from worker.duty.leases import Lease, Lost
from worker.duty.outbox import Outbox
from worker.duty.work import Workplace, execute
from worker.model.loading import OnStage, ProgressStage

SLOTS_HEAVY = 2
HEAVY: frozenset[WorkKind] = frozenset({"verify", "assess", "probe", "load"})
ON_DEVICE: frozenset[WorkKind] = frozenset({"probe", "load"})  # may need device memory: measured before the claim
FINISHED_MAX = 1_024
# Refusals of a claim after which this attempt is not claimed again, whoever offers it.
_OVER = frozenset(
    {Code.DEVICE_MEMORY_SHORT, Code.WORK_ENDED, Code.WORK_CANCELLED, Code.WORK_NOT_YOURS, Code.UNKNOWN_STREAM}
)
CLOSE_SECONDS_MAX = 10.0
MESSAGE_CHARACTERS_MAX = 4_000
DETAIL_CHARACTERS_MAX = 2_000
_log = structlog.get_logger(__name__)

Ending = Literal["cancelled", "stopping", "session_ended"]


class _InHand(Struct, eq=False):
    """One work item from its offer on. `attempt` is the offer's until the claim tells the lease's."""

    offer: Offer
    attempt: int
    task: asyncio.Task[None] | None = None
    claim: Claim | None = None
    lease: Lease | None = None
    stage: str = "queued"
    ending: Ending | None = None
    holds_slot: bool = False


class Dispatcher:
    """The work in hand of one generation. `on_fenced` is called when a newer generation is known to exist."""

    def __init__(
        self,
        control: Control,
        outbox: Outbox,
        place: Workplace,
        node_id: str,
        generation: str,
        lease_ms: float,
        measure: Measure = nothing_measured,
    ) -> None:
        self._control = control
        self._outbox = outbox
        self._place = place
        self._node_id = node_id
        self._generation = generation
        self._lease_ms = lease_ms
        self._measure = measure
        self._in_hand: dict[str, _InHand] = {}
        self._finished: OrderedDict[str, int] = OrderedDict()
        self._slots = asyncio.Semaphore(SLOTS_HEAVY)
        self._closed = False
        self.fenced = asyncio.Event()

    def offer(self, offer: Offer) -> bool:
        """Take the offer up, unless it's for work in hand or done, or the bound is reached. True where taken."""
        if self._closed or offer.node_id != self._node_id:
            return False
        if self._finished.get(offer.work_id, 0) >= offer.attempt:
            return False
        known = self._in_hand.get(offer.work_id)
        if known is not None or len(self._in_hand) >= OPEN_WORK_PER_NODE_MAX:
            return False  # a later attempt is offered again by a beat, once the lost one is out of hand
        held = _InHand(offer, offer.attempt)
        self._in_hand[offer.work_id] = held
        held.task = asyncio.create_task(self._handle(held))
        return True

    def cancel(self, work_id: str) -> None:
        """The control plane asked for this work to stop. Where no grant of it was heard, the next claim ends it."""
        held = self._in_hand.get(work_id)
        if held is None:
            return
        if held.lease is not None:
            self._end(held, "cancelled")
        elif held.claim is not None:
            held.claim.hurry()

    def _end(self, held: _InHand, ending: Ending) -> None:
        if held.ending is None and held.task is not None:
            held.ending = ending
            held.task.cancel()

    async def close(self, ending: Ending) -> None:
        """End everything in hand and see it end."""
        self._closed = True
        tasks = [held.task for held in self._in_hand.values() if held.task is not None]
        for held in list(self._in_hand.values()):
            self._end(held, ending)
        if not tasks:
            return
        _, stuck = await asyncio.wait(tasks, timeout=CLOSE_SECONDS_MAX)
        await end_tasks(stuck)  # they wait for a bus that is away, to say something that no longer matters

    async def _handle(self, held: _InHand) -> None:
        try:
            if held.offer.kind in HEAVY:
                await self._slots.acquire()
                held.holds_slot = True
            await self._claim_and_run(held)
        except asyncio.CancelledError:
            if held.ending is None:
                raise
        except Exception:  # noqa: BLE001 - a defect in one work item must not end the others
            _log.exception("work_defect", work_id=held.offer.work_id)
        finally:
            self._free_slot(held)
            self._in_hand.pop(held.offer.work_id, None)

    def _free_slot(self, held: _InHand) -> None:
        if held.holds_slot:
            held.holds_slot = False
            self._slots.release()

    async def _claim_and_run(self, held: _InHand) -> None:
        measure = self._measure if held.offer.kind in ON_DEVICE else nothing_measured
        work_id = held.offer.work_id
        held.claim = Claim(self._control, work_id, self._node_id, self._generation, self._lease_ms, measure)
        lease = await held.claim.run()
        if isinstance(lease, Lost):
            self._note_refused_claim(held, lease)
            return
        held.lease, held.attempt = lease, lease.order.attempt
        keeper = asyncio.create_task(lease.keep())
        running = asyncio.create_task(self._run(held, lease))
        try:
            await asyncio.wait([keeper, running], return_when=asyncio.FIRST_COMPLETED)
            if keeper.done() and not running.done():
                self._note_lost(held, keeper.result())
        except asyncio.CancelledError:
            await end_tasks([running])
            await self._say_ending(held, lease)
            raise
        finally:
            await end_tasks([running, keeper])
        if not running.cancelled():
            running.result()  # a defect raises here

    def _note_refused_claim(self, held: _InHand, lost: Lost) -> None:
        _log.info("claim_refused", work_id=held.offer.work_id, code=lost.code, reason=lost.message)
        if lost.code == Code.GENERATION_FENCED:
            self.fenced.set()
        if lost.code in _OVER:
            self._remember(held.offer.work_id, held.attempt)

    def _note_lost(self, held: _InHand, lost: Lost) -> None:
        _log.warning("lease_lost", work_id=held.offer.work_id, code=lost.code, reason=lost.message)
        if lost.code == Code.GENERATION_FENCED:
            self.fenced.set()

    async def _run(self, held: _InHand, lease: Lease) -> None:
        """Do the work, hand in the statement, and hold the lease until its outcome is committed."""
        order = lease.order

        def on_stage(stage: ProgressStage) -> None:
            held.stage = stage
            self._outbox.add_progress(order.work_id, order.attempt, Progress(stage))

        statement = await self._statement(held, lease, on_stage)
        if not lease.is_valid():
            await self._place.residents.discard(order.work_id)
            return
        self._free_slot(held)
        _log.info("work_done", work_id=order.work_id, kind=order.kind, outcome=type(statement).__name__)
        confirmed = await self._outbox.add(order.work_id, order.attempt, statement)
        self._remember(order.work_id, order.attempt)
        await confirmed.wait()

    async def _statement(self, held: _InHand, lease: Lease, on_stage: OnStage) -> Statement:
        try:
            return await execute(lease.order, self._place, on_stage)
        except Refusal as refusal:
            detail = {key: value[:DETAIL_CHARACTERS_MAX] for key, value in refusal.detail.items()}
            detail["stage"] = held.stage
            return WorkFailed(refusal.code, refusal.message[:MESSAGE_CHARACTERS_MAX], detail)
        except Exception as error:  # noqa: BLE001 - a defect here must not leave the work hanging until its deadline
            _log.exception("work_defect", work_id=lease.order.work_id)
            return WorkFailed(Code.INTERNAL_ERROR, repr(error)[:MESSAGE_CHARACTERS_MAX], {"stage": held.stage})

    async def _say_ending(self, held: _InHand, lease: Lease) -> None:
        """After the work has stopped: tell what the reason for its ending calls for."""
        if self._finished.get(held.offer.work_id) == held.attempt:
            return  # the result had been given already
        if held.ending == "cancelled" and lease.is_valid():
            await self._outbox.add(held.offer.work_id, held.attempt, WorkCancelled(held.stage))
            self._remember(held.offer.work_id, held.attempt)
        elif held.ending == "stopping":
            await lease.release("the worker stops")

    def _remember(self, work_id: str, attempt: int) -> None:
        self._finished[work_id] = attempt
        while len(self._finished) > FINISHED_MAX:
            self._finished.popitem(last=False)
