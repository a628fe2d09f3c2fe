"""1: at most one live lease per work item, of the node's current generation, granted for the next attempt."""

from __future__ import annotations

from schemas import events as ev
from services.eventlog.port import LogRow
from tests.simulation.checkers import Checker, Violation


class Leases(Checker):
    """Also what others look up: who holds what, and which generation each node is at."""

    def __init__(self) -> None:
        self.generation: dict[str, int] = {}
        self.alive: dict[str, bool] = {}
        self.enabled: dict[str, bool] = {}
        self.live: dict[str, tuple[str, int]] = {}  # work -> generation and attempt of its live lease
        self.attempts: dict[str, int] = {}
        self.node_of: dict[str, str] = {}
        self.until: dict[str, int] = {}
        self.ended: set[str] = set()

    def see(self, row: LogRow, event: ev.Event) -> None:
        match event:
            case ev.NodeEnrolled():
                self.generation[event.node_id], self.enabled[event.node_id] = 0, True
            case ev.NodeDisabled():
                self.enabled[event.node_id] = self.alive[event.node_id] = False
            case ev.NodeEnabled():
                self.enabled[event.node_id] = True
            case ev.WorkerRegistered():
                if int(event.generation) <= self.generation[event.node_id]:
                    raise Violation(f"generation {event.generation} of {event.node_id} is not newer")
                self.generation[event.node_id] = int(event.generation)
                self.alive[event.node_id] = True
            case ev.SessionLost():
                self.alive[event.node_id] = False
            case ev.WorkRequested():
                self.node_of[event.work_id] = event.node_id
            case ev.LeaseGranted():
                self._grant(event)
            case ev.LeaseRenewed():
                if self.live.get(event.work_id) != (event.generation, event.attempt):
                    raise Violation(f"work {event.work_id}: a lease was renewed that is not live")
                self.until[event.work_id] = event.until_ms
            case ev.LeaseEnded():
                self.live.pop(event.work_id, None)
            case ev.WorkCompleted() | ev.WorkFailed() | ev.WorkCancelled():
                if event.work_id in self.ended:
                    raise Violation(f"work {event.work_id} ended twice")
                self.ended.add(event.work_id)
                self.live.pop(event.work_id, None)
            case _:
                pass

    def _grant(self, event: ev.LeaseGranted) -> None:
        if event.work_id in self.live:
            raise Violation(f"work {event.work_id} has two live leases")
        if event.work_id in self.ended:
            raise Violation(f"work {event.work_id} was leased after its end")
        if int(event.generation) != self.generation[event.node_id] or not self.alive.get(event.node_id):
            raise Violation(f"work {event.work_id} was leased to generation {event.generation}, which is over")
        if event.attempt != self.attempts.get(event.work_id, 0) + 1:
            raise Violation(f"work {event.work_id}: attempt {event.attempt} does not follow")
        self.attempts[event.work_id] = event.attempt
        self.live[event.work_id] = (event.generation, event.attempt)
        self.until[event.work_id] = event.until_ms

    def step(self) -> None:
        for work_id, (generation, _) in self.live.items():
            node_id = self.node_of[work_id]
            if int(generation) != self.generation[node_id] or not self.alive[node_id]:
                raise Violation(f"work {work_id} has a lease of generation {generation} of {node_id}, which is over")
