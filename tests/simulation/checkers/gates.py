"""5: a candidate has a completed probe; a deployment has a standing approval of that candidate's exact digest."""

from __future__ import annotations

from schemas import events as ev
from services.eventlog.port import LogRow
from tests.simulation.checkers import Violation


class Gates:
    def __init__(self) -> None:
        self._completed: set[str] = set()
        self._approved: dict[str, str] = {}

    def see(self, row: LogRow, event: ev.Event) -> None:
        match event:
            case ev.WorkCompleted():
                self._completed.add(event.work_id)
            case ev.CandidateCreated():
                if event.probe_id not in self._completed:
                    raise Violation(f"candidate {event.candidate_id} has no completed probe")
            case ev.ApprovalGranted():
                self._approved[event.candidate_id] = event.candidate_digest
            case ev.ApprovalRevoked():
                self._approved.pop(event.candidate_id, None)
            case ev.DeploymentCreated():
                if self._approved.get(event.candidate_id) != event.candidate_digest:
                    raise Violation(f"deployment {event.name} has no approval of its candidate's digest")
            case _:
                pass
