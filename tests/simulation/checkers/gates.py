"""5: a candidate has a completed probe; what is deployed or loaded has a standing approval of its exact digest."""

from __future__ import annotations

from schemas import events as ev
from schemas.work import JobSpec
from services.eventlog.port import LogRow
from tests.simulation.checkers import Checker, Violation

ROUTED = ("resident", "draining")


class Gates(Checker):
    """A revocation ends no resident; a routed deployment is one whose load was asked for and granted under approval."""

    def __init__(self) -> None:
        self._kind: dict[str, str] = {}
        self._completed: set[str] = set()
        self._probed: dict[str, str] = {}  # candidate -> digest
        self._approved: dict[str, str] = {}
        self._deployed: dict[str, tuple[str, str]] = {}  # deployment -> candidate and digest
        self._loads: dict[str, str] = {}  # load -> deployment
        self._granted: set[str] = set()
        self._resident: dict[tuple[str, str], tuple[str, str]] = {}  # deployment and node -> state and work

    def see(self, row: LogRow, event: ev.Event) -> None:
        match event:
            case ev.WorkRequested():
                self._request(event)
            case ev.LeaseGranted() if event.work_id in self._loads:
                self._must_be_approved(self._loads[event.work_id], "granted")
                self._granted.add(event.work_id)
            case ev.WorkCompleted():
                self._completed.add(event.work_id)
            case ev.CandidateCreated():
                if event.probe_id not in self._completed or self._kind[event.probe_id] != "probe":
                    raise Violation(f"candidate {event.candidate_id} has no completed probe")
                self._probed[event.candidate_id] = event.candidate_digest
            case ev.ApprovalGranted():
                if self._probed.get(event.candidate_id) != event.candidate_digest:
                    raise Violation(f"approved: a digest that candidate {event.candidate_id} has not")
                self._approved[event.candidate_id] = event.candidate_digest
            case ev.ApprovalRevoked():
                self._approved.pop(event.candidate_id, None)
            case ev.DeploymentCreated():
                self._deployed[event.deployment_id] = (event.candidate_id, event.candidate_digest)
                self._must_be_approved(event.deployment_id, "created")
            case ev.ResidencyChanged():
                self._resident[event.deployment_id, event.node_id] = (event.state, event.work_id)
            case _:
                pass

    def _request(self, event: ev.WorkRequested) -> None:
        self._kind[event.work_id] = event.kind
        if isinstance(event.spec, JobSpec) and event.spec.verb == "load":
            self._must_be_approved(event.spec.deployment_id, "asked to load")
            self._loads[event.work_id] = event.spec.deployment_id

    def _must_be_approved(self, deployment_id: str, what: str) -> None:
        candidate_id, digest = self._deployed[deployment_id]
        if self._approved.get(candidate_id) != digest:
            raise Violation(f"deployment {deployment_id} was {what} without an approval of its candidate's digest")

    def step(self) -> None:
        for (deployment_id, node_id), (state, work_id) in self._resident.items():
            if state == "resident" and work_id in self._loads and work_id not in self._granted:
                raise Violation(f"{deployment_id} is resident on {node_id} by a load that nobody was granted")
            if deployment_id not in self._deployed:
                raise Violation(f"{deployment_id} is {state} on {node_id} and was never deployed")
