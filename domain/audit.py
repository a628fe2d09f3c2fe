"""The auditor: replays a log from nothing and says whether every step in it was allowed.

Needs no secrets and no other source: public session keys are in the log, evidence is in the log whole.
What it checks, beyond folding (which lists stale events by itself):

* an event is in the stream of what it is about; versions in a stream follow one another, positions grow;
* what is named by a digest (set, profile, environment, candidate) has that digest;
* a lease is granted only to the generation that its node had at that moment;
* evidence inside an accepted event carries a valid signature of its generation's session key, is about
  that work, node, generation and attempt, says what the event says, and no evidence id counts twice;
* a verified set has a completed verification behind it, a candidate a completed probe whose evidence has the
  digest that the candidate names, a resident a completed load of its generation;
* a reservation rests on the reservations that the log had then, fits what was measured, and goes over to the
  residency unchanged; no load was begun while its circuit was open, and a circuit opened only after enough ends;
* a deployment was made under a standing approval of its candidate's exact digest;
* at the end no work is open and no residency is held on a disabled node, nor under a generation that is over.

Commands of people are not signed: a forged event that breaks none of these rules (an approval of the right
digest, say, under a name that somebody took) is not found here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from domain import circuits
from domain.admission import available_bytes, promised_on
from domain.folding.fleet import Fleet
from domain.folding.fold import fold
from domain.folding.states import CandidateState, DeploymentState, State, WorkState
from schemas import events as ev
from schemas import evidence as se
from schemas.artifacts import manifest_digest
from schemas.canonical import digest_of
from schemas.codes import Code
from schemas.environments import fingerprint
from schemas.evidence import Evidence, SignedEvidence, Statement
from schemas.profiles import profile_digest
from schemas.work import ProbeSpec, VerifySpec

FINDINGS_MAX = 1_000  # of each list; counts go on

SignatureValid = Callable[[str, SignedEvidence], bool]
_decode = msgspec.json.Decoder(Evidence).decode
Signed = ev.WorkProgressed | ev.WorkCompleted | ev.WorkFailed | ev.WorkCancelled | ev.ResidencyChanged
_SIGNED = (ev.WorkProgressed, ev.WorkCompleted, ev.WorkFailed, ev.WorkCancelled, ev.ResidencyChanged)
# An event with several ids is in the stream of the first of these.
_NOUNS = ("deployment", "candidate", "artifact", "profile", "work", "node")
_NOUN_OF = {
    struct: next(noun for noun in _NOUNS if f"{noun}_id" in struct.__struct_fields__) for struct in ev.TOPICS.values()
}


class Finding(NamedTuple):
    """Something in the log worth a person's look, at its position."""

    position: int
    stream: str
    what: str


class Auditor:
    """Feed it every row in order with `take`, then call `finish`."""

    def __init__(self, signature_valid: SignatureValid) -> None:
        self._signature_valid = signature_valid
        self.states: dict[str, State | None] = {}
        self.versions: dict[str, int] = {}
        self.fleet = Fleet()
        self.events = 0
        self.position = 0
        self.signatures_checked = 0
        self.stale: list[Finding] = []
        self.rejected: list[Finding] = []
        self.violations: list[Finding] = []
        self.stale_count = 0
        self.rejected_count = 0
        self.violation_count = 0
        self._evidence_seen: set[str] = set()
        self._checks: dict[type[ev.Event], Callable[[Any], str | None]] = {
            ev.ArtifactRegistered: self._artifact,
            ev.ProfileCreated: self._profile,
            ev.WorkerRegistered: self._registered,
            ev.ArtifactVerified: self._verified,
            ev.LeaseGranted: self._granted,
            ev.CandidateCreated: self._candidate,
            ev.ApprovalGranted: self._approved,
            ev.DeploymentCreated: self._deployed,
            ev.ResidencyChanged: self._resided,
            ev.CircuitOpened: self._circuit_opened,
            ev.CircuitClosed: self._circuit_closed,
        }

    def take(self, position: int, stream: str, version: int, event: ev.Event) -> bool:
        """Judge the next event of the log; whether it counted."""
        before = self.states.get(stream)
        if position <= self.position:
            self._violation(position, stream, f"position {position} after {self.position}")
        if version != self.versions.get(stream, 0) + 1:
            self._violation(position, stream, f"version {version} after {self.versions.get(stream, 0)}")
        after, reason = fold(before, event)
        self.position, self.versions[stream], self.states[stream] = position, version, after
        self.events += 1
        if reason is not None:
            self.stale_count += 1
            _note(self.stale, Finding(position, stream, f"{type(event).__name__} does not count: {reason}"))
            return False
        self._check(position, stream, event)
        self.fleet.note(before, after)
        return True

    def finish(self) -> None:
        """Check what must hold at the end of the log."""
        for work in self.fleet.open_work.values():
            node = self.fleet.nodes.get(work.node_id)
            if node is None or not node.enabled:
                self._violation(self.position, f"work-{work.work_id}", f"open on disabled node {work.node_id}")
            elif work.lease is not None and (work.lease.generation != node.generation or node.session != "alive"):
                self._violation(self.position, f"work-{work.work_id}", "its lease belongs to a generation that is over")
        for node_id, deployments in self.fleet.held_on.items():
            for deployment_id in deployments:
                self._finish_held(node_id, deployment_id)

    def _finish_held(self, node_id: str, deployment_id: str) -> None:
        node, deployment = self.fleet.nodes.get(node_id), self.states.get(f"deployment-{deployment_id}")
        if node is None or not node.enabled:
            self._violation(self.position, f"deployment-{deployment_id}", f"held on disabled node {node_id}")
        elif isinstance(deployment, DeploymentState):
            held = deployment.residencies[node_id]
            over = held.generation != node.generation or node.session != "alive"
            if held.state != "loading" and held.generation != "0" and over:
                self._violation(self.position, f"deployment-{deployment_id}", "held by a generation that is over")

    def _check(self, position: int, stream: str, event: ev.Event) -> None:
        check = self._checks.get(type(event))
        what = check(event) if check is not None else None
        if what is not None:
            self._violation(position, stream, what)
        about = _stream_of(event)
        if stream != about and not isinstance(event, ev.EvidenceRejected):  # of unknown work it is with the node
            self._violation(position, stream, f"{type(event).__name__} is about {about}")
        if isinstance(event, ev.EvidenceRejected):
            self.rejected_count += 1
            _note(self.rejected, Finding(position, stream, f"{event.reason}: {event.message}"))
        elif isinstance(event, _SIGNED) and event.signed is not None:
            self._check_evidence(position, stream, event, event.signed)

    # each gives what is wrong with an event that counted, None where nothing is

    def _artifact(self, event: ev.ArtifactRegistered) -> str | None:
        right = manifest_digest(event.files) == event.artifact_id and sum(f.size for f in event.files) == event.bytes
        return None if right else "the files are not the set that the id names"

    def _profile(self, event: ev.ProfileCreated) -> str | None:
        return None if profile_digest(event.profile) == event.profile_id else "the settings are not what the id names"

    def _registered(self, event: ev.WorkerRegistered) -> str | None:
        named = fingerprint(event.environment) == event.fingerprint
        return None if named else "the environment is not what the fingerprint names"

    def _verified(self, event: ev.ArtifactVerified) -> str | None:
        spec = VerifySpec(event.artifact_id, event.location)
        proven = self._completed(event.work_id, event.node_id, lambda work: work.spec == spec)
        return None if proven else "no completed verification stands behind this"

    def _granted(self, event: ev.LeaseGranted) -> str | None:
        node = self.fleet.nodes.get(event.node_id)
        if node is None or node.generation != event.generation or not node.enabled or node.session != "alive":
            return f"lease for generation {event.generation}, which node {event.node_id} has not"
        if event.reserved is None:
            return None
        # the fleet has this grant not yet, but may have the one that this work had before
        device, stream = event.reserved.device_index, f"work-{event.work_id}"
        promised = promised_on(self.fleet, event.node_id, device, stream)
        if (event.reserved.resident_bytes, event.reserved.pending_bytes) != promised:
            return (
                f"{promised.resident + promised.pending} bytes of device {device} were reserved, and it says otherwise"
            )
        fits = event.reserved.needed_bytes <= available_bytes(event.reserved)
        return None if fits else f"reserved more of device {device} than was measured free"

    def _candidate(self, event: ev.CandidateCreated) -> str | None:
        probe = self.states.get(f"work-{event.probe_id}")
        if not isinstance(probe, WorkState) or not isinstance(probe.spec, ProbeSpec) or probe.stage != "completed":
            return "there is no completed probe behind this candidate"
        if probe.evidence_sha256 != event.evidence_sha256:
            return "the probe's evidence is not what the candidate names"
        spec = (probe.spec.artifact_id, probe.spec.profile_id, probe.spec.fingerprint)
        if spec != (event.artifact_id, event.profile_id, event.fingerprint):
            return "the probe was about something else than the candidate names"
        named = {
            "artifact_id": event.artifact_id, "profile_id": event.profile_id, "fingerprint": event.fingerprint,
            "probe_id": event.probe_id, "evidence_sha256": event.evidence_sha256,
        }  # fmt: skip
        return None if digest_of(named) == event.candidate_digest else "the digest is not that of what it names"

    def _approved(self, event: ev.ApprovalGranted) -> str | None:
        return None if event.approver == event.actor else f"{event.actor} approved in the name of {event.approver}"

    def _deployed(self, event: ev.DeploymentCreated) -> str | None:
        candidate = self.states.get(f"candidate-{event.candidate_id}")
        if not isinstance(candidate, CandidateState) or candidate.approved_by is None:
            return "deployed without a standing approval"
        approved = (candidate.digest, candidate.artifact_id, candidate.profile_id, candidate.fingerprint)
        if approved != (event.candidate_digest, event.artifact_id, event.profile_id, event.fingerprint):
            return "deployed without an approval of this exact digest"
        return None

    def _resided(self, event: ev.ResidencyChanged) -> str | None:
        work, node = self.states.get(f"work-{event.work_id}"), self.fleet.nodes.get(event.node_id)
        about = (work.deployment_id, work.node_id) if isinstance(work, WorkState) else None
        if about != (event.deployment_id, event.node_id) or not isinstance(work, WorkState):
            return f"work {event.work_id} is not about this residency"
        deployment = self.states.get(f"deployment-{event.deployment_id}")
        if event.state == "loading" and isinstance(deployment, DeploymentState):
            refused = circuits.load_refused(deployment, event.node_id, event.at_ms)
            return None if refused is None else "loaded while its circuit was open"
        if event.state != "resident":
            return None
        if event.reserved != (work.reserved if work.kind == "load" else None):
            return "resident with another reservation than its load had"
        if work.kind == "unload" and work.stage in ("cancelled", "failed") and work.attempt == 0:
            return None  # nobody had begun to unload it; folding has seen that it was resident before
        if work.kind == "drain" and work.ended and node is not None and node.generation == event.generation:
            return None  # a drain that did not happen; folding has seen that it is this one's state that is taken back
        if work.kind != "load" or work.stage != "completed" or work.generation != event.generation:
            return "resident without a completed load of this generation"
        return None if node is not None and node.generation == event.generation else "resident under an old generation"

    def _circuit_opened(self, event: ev.CircuitOpened) -> str | None:
        deployment = self.states.get(f"deployment-{event.deployment_id}")
        circuit = deployment.circuits.get(event.node_id) if isinstance(deployment, DeploymentState) else None
        if circuit is None or not circuit.ends or circuit.ends[-1].at_ms != event.at_ms:
            return "a circuit opened without an end"
        if event.openings == 1 and len(circuit.ends) < circuits.ENDS_MAX:
            return f"a circuit opened after {len(circuit.ends)} ends"
        right = event.until_ms == event.at_ms + circuits.backoff_ms(event.openings)
        return None if right else "a circuit opened for another time than it may"

    def _circuit_closed(self, event: ev.CircuitClosed) -> str | None:
        deployment = self.states.get(f"deployment-{event.deployment_id}")
        resident = isinstance(deployment, DeploymentState) and deployment.residency(event.node_id) == "resident"
        return None if resident or event.by == "person" else "a circuit closed without a successful load"

    def _completed(self, work_id: str, node_id: str, right: Callable[[WorkState], bool]) -> bool:
        work = self.states.get(f"work-{work_id}")
        return isinstance(work, WorkState) and work.stage == "completed" and work.node_id == node_id and right(work)

    def _check_evidence(
        self,
        position: int,
        stream: str,
        event: Signed,
        signed: SignedEvidence,
    ) -> None:
        try:
            evidence = _decode(signed.payload)
        except msgspec.DecodeError as error:
            self._violation(position, stream, f"evidence cannot be read: {error}")
            return
        self.signatures_checked += 1
        node = self.fleet.nodes.get(evidence.node_id)
        key = node.session_keys.get(evidence.generation) if node is not None else None
        if key is None or not self._signature_valid(key, signed):
            self._violation(position, stream, f"evidence {evidence.evidence_id}: {Code.SIGNATURE_INVALID}")
        if not self._about(event, evidence):
            self._violation(position, stream, f"evidence {evidence.evidence_id} is about other work")
        if evidence.evidence_id in self._evidence_seen:
            self._violation(position, stream, f"evidence {evidence.evidence_id} counts twice")
        self._evidence_seen.add(evidence.evidence_id)
        if not _agree(event, evidence.statement):
            self._violation(position, stream, f"event and evidence {evidence.evidence_id} say different things")

    def _about(self, event: Signed, evidence: Evidence) -> bool:
        """Whether evidence is about what its event is about: a residency, or a work item, node and attempt."""
        if isinstance(event, ev.ResidencyChanged):
            return (evidence.generation, evidence.node_id) == (event.generation, event.node_id)
        work = self.states.get(f"work-{event.work_id}")
        spoken = (evidence.work_id, evidence.generation, evidence.attempt, evidence.node_id)
        return spoken == (event.work_id, event.generation, event.attempt, getattr(work, "node_id", None))

    def _violation(self, position: int, stream: str, what: str) -> None:
        self.violation_count += 1
        _note(self.violations, Finding(position, stream, what))


def _agree(event: ev.Event, says: Statement) -> bool:
    """Whether an event says what its evidence says. A failure may also be a result that fell short."""
    match event:
        case ev.WorkCompleted(result=result):
            return says == result
        case ev.WorkProgressed(stage=stage):
            return isinstance(says, se.Progress) and says.stage == stage
        case ev.ResidencyChanged(deployment_id=deployment_id, state=state):
            return isinstance(says, se.ResidentLost) and (says.deployment_id, state) == (deployment_id, "lost")
        case ev.WorkFailed(code=code, message=message) if isinstance(says, se.WorkFailed):
            return (says.code, says.message) == (code, message)
        case ev.WorkFailed():
            return isinstance(says, se.Verified | se.Probed | se.Loaded)
        case _:
            return isinstance(says, se.WorkCancelled)


def _stream_of(event: ev.Event) -> str:
    noun = _NOUN_OF[type(event)]
    return f"{noun}-{getattr(event, f'{noun}_id')}"


def _note(findings: list[Finding], finding: Finding) -> None:
    if len(findings) < FINDINGS_MAX:
        findings.append(finding)
