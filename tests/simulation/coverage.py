"""What stories came across, counted: faults, which event met which state, why things failed or were refused.

A simulator that does nothing finds nothing; so what must have happened in EXPECTED_FROM stories is asked for by name.
"""

from __future__ import annotations

import collections
from typing import Any

from domain.folding.states import DeploymentState, NodeState, WorkState
from schemas import events as ev
from schemas.codes import Code
from schemas.work import RUNNING_STAGES
from services.eventlog.port import LogRow
from tests.simulation.faults import KINDS

EXPECTED_FROM = 1_000
EXPECTED = (
    *(f"fault {kind}" for kind in KINDS),
    *(f"work.cancel_requested.v1 in {stage}" for stage in RUNNING_STAGES),
    "work.cancelled.v1 in queued",
    "refused work.cancel: WORK_ENDED",
    "refused profile.create: RUNTIME_INCOMPATIBLE",
    "refused job.request: RUNTIME_CRASH_LOOP",
    "work.failed.v1: DEVICE_MEMORY_SHORT",
    "deployment unsatisfiable",
    "deployment unsatisfiable, then loaded",
    "work.failed.v1: WORK_DEADLINE",
    "work.failed.v1: WORK_ATTEMPTS_EXHAUSTED",
    "evidence.rejected.v1: GENERATION_FENCED",
    "evidence.rejected.v1: LEASE_ENDED",
    "evidence.rejected.v1: LEASE_EXPIRED",
    "hint lost",
    "came again from COMMANDS",
    "came again from EVIDENCE",
    "came again from WORK",
    "load in quiet times",
    "superseded",
)


class Coverage(collections.Counter[str]):
    """Of one story; `events` are asked for each new row with the state that it meets."""

    def __init__(self) -> None:
        super().__init__()
        self._short: set[tuple[str, str]] = set()  # deployments and nodes without enough device memory

    def note(self, row: LogRow, before: Any, event: ev.Event) -> None:
        self[f"{row.topic} in {_place(before, event)}"] += 1
        match event:
            case ev.WorkFailed():
                self[f"{row.topic}: {event.code}"] += 1
            case ev.EvidenceRejected():
                self[f"{row.topic}: {event.reason}"] += 1
            case ev.SessionLost() | ev.LeaseEnded():
                self[f"{row.topic}: {event.cause}"] += 1
            case ev.ResidencyChanged():
                self._note_shortage(event)
            case _:
                pass

    def _note_shortage(self, event: ev.ResidencyChanged) -> None:
        place = (event.deployment_id, event.node_id)
        if event.code is Code.DEVICE_MEMORY_SHORT:
            self["deployment unsatisfiable"] += 1
            self._short.add(place)
        elif event.state == "resident" and place in self._short:
            self["deployment unsatisfiable, then loaded"] += 1
            self._short.discard(place)


def unseen(covered: collections.Counter[str]) -> list[str]:
    """What should have happened, and did not."""
    return [what for what in EXPECTED if not covered[what]]


def _place(state: Any, event: ev.Event) -> str:
    """The state that an event met, in one word."""
    if state is None:
        return "nothing"
    if isinstance(state, WorkState):
        return state.stage
    if isinstance(state, NodeState):
        return state.session if state.enabled else "disabled"
    if isinstance(state, DeploymentState):
        return state.residency(getattr(event, "node_id", ""))
    return type(state).__name__
