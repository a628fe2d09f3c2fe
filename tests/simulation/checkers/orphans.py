"""3, `no_orphan_serving_work`: no job outlives its lease or deadline, and nothing is held where nobody may hold it.

From each transaction on, without delay:

* on a disabled node no work is open and nothing is resident;
* work that asks something of a resident, and a residency itself, end with the generation that holds it;
* a residency on its way (loading, unloading) has open work that will end it.

Time itself cannot end a lease: an active control plane does, when it looks. So a lease or a deadline may be passed by
`bound_ms`, counted from when it was passed, or from when a control plane that can reach log and bus became active, if
that was later. Where there is none, nothing can end, and nothing is granted either. At rest nothing is open at all.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas import events as ev
from services.control.leadership import RENEWALS_PER_TERM
from services.control.serve import TICK_S
from services.eventlog.port import LogRow
from tests.simulation.checkers import Checker, Violation
from tests.simulation.checkers.leases import Leases
from tests.simulation.checkers.truth import Truth

COMMIT_MS_MAX = 1_000  # in simulation: a look at a log that is away takes 500 ms, and one may be under way
HOLDING = ("loading", "resident", "draining", "unloading")
REPEATABLE = ("verify", "assess", "probe", "load")


class Held(NamedTuple):
    state: str
    generation: str
    work_id: str


def bound_ms(leader_ms: int) -> int:
    """From when it could be seen until it is in the log: a renewed leadership, one look, one commit."""
    return leader_ms // RENEWALS_PER_TERM + int(TICK_S * 1_000) + COMMIT_MS_MAX


class Orphans(Checker):
    def __init__(self, leases: Leases, truth: Truth, leader_ms: int) -> None:
        self._leases = leases
        self._truth = truth
        self._bound_ms = bound_ms(leader_ms)
        self._epoch = -1
        self._since_ms = 0
        self._open: dict[str, str] = {}  # work -> kind
        self._deadline: dict[str, int] = {}
        self._held: dict[tuple[str, str], Held] = {}  # deployment and node

    def see(self, row: LogRow, event: ev.Event) -> None:
        match event:
            case ev.WorkRequested():
                self._open[event.work_id], self._deadline[event.work_id] = event.kind, event.deadline_ms
            case ev.LeaseGranted():
                self._deadline[event.work_id] = event.deadline_ms
            case ev.LeaseEnded() if event.deadline_ms is not None:
                self._deadline[event.work_id] = event.deadline_ms
            case ev.WorkCompleted() | ev.WorkFailed() | ev.WorkCancelled():
                self._open.pop(event.work_id, None)
            case ev.ResidencyChanged():
                place = (event.deployment_id, event.node_id)
                self._held.pop(place, None)
                if event.state in HOLDING:
                    self._held[place] = Held(event.state, event.generation, event.work_id)
            case _:
                pass

    def step(self) -> None:
        for work_id, kind in self._open.items():
            self._may_be_open(work_id, kind)
        for (deployment_id, node_id), held in self._held.items():
            self._may_be_held(deployment_id, node_id, held)
        active = self._truth.active()
        if active is None:
            self._epoch = -1
        elif active.epoch != self._epoch:
            self._epoch, self._since_ms = active.epoch, active.now_ms
        elif active.now_ms - self._since_ms > self._bound_ms:
            self._check_time(active.now_ms)

    def _may_be_open(self, work_id: str, kind: str) -> None:
        node_id = self._leases.node_of[work_id]
        if not self._leases.enabled[node_id]:
            raise Violation(f"{kind} {work_id} is open on {node_id}, which is disabled")
        if kind not in REPEATABLE and not self._leases.alive[node_id]:
            raise Violation(f"{kind} {work_id} is open, and the worker of {node_id} that it was for is over")

    def _may_be_held(self, deployment_id: str, node_id: str, held: Held) -> None:
        about = f"{deployment_id} is {held.state} on {node_id}"
        if not self._leases.enabled[node_id]:
            raise Violation(f"{about}, which is disabled")
        if held.state in ("loading", "unloading"):
            if held.work_id not in self._open:
                raise Violation(f"{about}, and {held.work_id}, which should end that, has ended")
        elif not self._leases.alive[node_id] or int(held.generation) != self._leases.generation[node_id]:
            raise Violation(f"{about} under generation {held.generation}, which is over")

    def _check_time(self, now_ms: int) -> None:
        for work_id, kind in self._open.items():
            leased = work_id in self._leases.live
            if leased and now_ms - self._leases.until[work_id] > self._bound_ms:
                over_ms = now_ms - self._leases.until[work_id]
                raise Violation(f"{kind} {work_id} is leased {over_ms} ms past its lease")
            if now_ms - self._deadline[work_id] > self._bound_ms:
                state, over_ms = "leased" if leased else "queued", now_ms - self._deadline[work_id]
                raise Violation(f"{kind} {work_id} is {state} {over_ms} ms past its deadline")

    def rest(self) -> None:
        if self._open:
            raise Violation(f"open at rest: {sorted(self._open.items())[:5]}")
        moving = [place for place, held in self._held.items() if held.state in ("loading", "unloading")]
        if moving:
            raise Violation(f"neither held nor gone at rest: {moving[:5]}")
