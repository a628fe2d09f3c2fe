"""8: what is advertised can be done.

The story's files suit every adapter, so what a worker registered decides: a task that it lists for an adapter is
assessed as compatible; one that it does not list is refused with RUNTIME_INCOMPATIBLE and the reason, gets no profile,
and is never probed, approved, deployed or loaded. Where no fault is at work, a load that was asked for ends with the
model loaded, unless a person or the device's memory (invariant 9) stood in its way; at rest every capability that is
listed is loaded.
"""

from __future__ import annotations

import msgspec

from schemas import events as ev
from schemas import evidence as se
from schemas.codes import Code
from schemas.replies import Reply
from schemas.work import AssessSpec, JobSpec, ProbeSpec
from services.eventlog.port import LogRow
from tests.simulation.checkers import Checker, Violation
from tests.simulation.checkers.outcomes import NO_OUTCOME
from tests.simulation.checkers.truth import Truth

Capability = tuple[str, str]  # adapter and task
# why a load may fail although nothing is broken: a person's doing, or a device that is full
EXCUSED = (Code.NODE_DISABLED, Code.CANDIDATE_NOT_APPROVED, Code.DEVICE_MEMORY_SHORT)


class _Assessment(msgspec.Struct):
    assessment_id: str


_decode = msgspec.json.Decoder(_Assessment).decode


class Advertised(Checker):
    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._listed: dict[tuple[str, str], set[Capability]] = {}  # node and generation
        self._newest: dict[str, str] = {}
        self._node_of: dict[str, str] = {}
        self._asked: dict[str, Capability] = {}  # assessment -> what it is about
        self._refused: dict[str, str] = {}  # assessment -> the reason
        self._profiles: dict[str, Capability] = {}
        self._uses: dict[str, str] = {}  # probe, load, deployment -> profile
        self._quiet_loads: set[str] = set()
        self._resident: dict[str, tuple[str, Capability]] = {}  # deployment -> generation and what it does

    def see(self, row: LogRow, event: ev.Event) -> None:
        match event:
            case ev.WorkerRegistered():
                self._newest[event.node_id] = event.generation
                listed = {(adapter, task) for adapter, tasks in event.capabilities.items() for task in tasks}
                self._listed[event.node_id, event.generation] = listed
            case ev.WorkRequested():
                self._request(event)
            case ev.ProfileCreated():
                adapter, task = event.profile.adapter, event.profile.task
                if event.assessment_id in self._refused or self._asked[event.assessment_id] != (adapter, task):
                    raise Violation(f"profile {event.profile_id} was made without a compatible assessment")
                self._profiles[event.profile_id] = (adapter, task)
            case ev.DeploymentCreated():
                self._uses[event.deployment_id] = event.profile_id
                if self._profiles[event.profile_id][1] != event.capability:
                    raise Violation(f"deployment {event.name} is for {event.capability}, and its profile is not")
            case ev.WorkCompleted():
                self._complete(event)
            case ev.WorkFailed() if event.work_id in self._quiet_loads and self._truth.is_quiet():
                if event.code not in EXCUSED:
                    raise Violation(f"load {event.work_id} failed with {event.code}, and nothing was broken")
            case ev.CancelRequested():
                self._quiet_loads.discard(event.work_id)
            case ev.ResidencyChanged():
                self._resident.pop(event.deployment_id, None)
                if event.state == "resident":
                    profile_id = self._uses[event.deployment_id]
                    self._resident[event.deployment_id] = (event.generation, self._profiles[profile_id])
            case _:
                pass

    def _request(self, event: ev.WorkRequested) -> None:
        self._node_of[event.work_id] = event.node_id
        match event.spec:
            case AssessSpec(adapter=adapter, task=task):
                self._asked[event.work_id] = (adapter, task)
            case ProbeSpec(profile_id=profile_id):
                self._uses[event.work_id] = profile_id
            case JobSpec(verb="load", profile_id=profile_id):
                self._uses[event.work_id] = profile_id
                if self._truth.is_quiet():
                    self._quiet_loads.add(event.work_id)
            case _:
                pass

    def _complete(self, event: ev.WorkCompleted) -> None:
        listed = self._listed[self._node_of[event.work_id], event.generation]
        match event.result:
            case se.Assessed():
                self._assessed(event.work_id, event.result, listed)
            case se.Probed() | se.Loaded():
                about = self._profiles[self._uses[event.work_id]]
                if about not in listed:
                    raise Violation(f"generation {event.generation} ran {about}, which it does not list")
                self._truth.cover("load in quiet times", event.work_id in self._quiet_loads)
            case _:
                pass

    def _assessed(self, work_id: str, result: se.Assessed, listed: set[Capability]) -> None:
        about = self._asked[work_id]
        if about in listed:
            if not result.compatible:
                raise Violation(f"{about} is listed, and was assessed as incompatible: {result.reasons}")
            return
        told = [reason.message for reason in result.reasons if reason.code is Code.RUNTIME_INCOMPATIBLE]
        if result.compatible or not told or not told[0]:
            raise Violation(f"{about} is not listed, and was assessed as {result}")
        self._refused[work_id] = told[0]

    def heard(self, name: str, body: bytes, reply: Reply) -> None:
        """Somebody asked for a profile: on the ground of an incompatible assessment it is refused, with the reason."""
        if name != "profile.create" or reply.code in (*NO_OUTCOME, Code.DUPLICATE_COMMAND):
            return
        reason = self._refused.get(_decode(body).assessment_id)
        if reason is not None and (reply.code is not Code.RUNTIME_INCOMPATIBLE or reason not in reply.message):
            raise Violation(f"a profile for what is refused because {reason!r} was answered {reply}")

    def rest(self) -> None:
        for node_id, generation in self._newest.items():
            loaded = {about for held_by, about in self._resident.values() if held_by == generation}
            missing = self._listed[node_id, generation] - loaded
            if missing:
                raise Violation(f"generation {generation} of {node_id} lists {sorted(missing)}, which is not loaded")
