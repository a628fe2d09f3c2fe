"""The auditor: replays a log from nothing and says whether every step in it was allowed.

Needs no secrets and no other source: public session keys are in the log, evidence is in the log whole.
What it checks, beyond folding (which lists stale events by itself):

* a lease is granted only to the generation that its node had at that moment;
* evidence inside an accepted event carries a valid signature of its generation's session key, is about
  that work, generation and attempt, says what the event says, and no evidence id counts twice;
* a candidate has a completed probe whose evidence has the digest that the candidate names;
* a deployment was made under a standing approval of its candidate's exact digest;
* versions in each stream follow one another, and positions grow;
* at the end no work is open and no residency is held on a disabled node, nor under a generation that is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from domain.fleet import Fleet
from domain.fold import fold
from domain.states import CandidateState, State, WorkState
from schemas import events as ev
from schemas.codes import Code
from schemas.evidence import Evidence, Progress, SignedEvidence

FINDINGS_MAX = 1_000  # of each list; counts go on

SignatureValid = Callable[[str, SignedEvidence], bool]
_decode = msgspec.json.Decoder(Evidence).decode


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

    def take(self, position: int, stream: str, version: int, event: ev.Event) -> None:
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
            return
        self._check(position, stream, event)
        self.fleet.note(before, after)

    def finish(self) -> None:
        """Check what must hold at the end of the log."""
        for work in self.fleet.open_work.values():
            node = self.fleet.nodes.get(work.node_id)
            if node is None or not node.enabled:
                self._violation(self.position, f"work-{work.work_id}", f"open on disabled node {work.node_id}")
            elif work.lease is not None and work.lease.generation != node.generation:
                self._violation(self.position, f"work-{work.work_id}", "its lease belongs to a generation that is over")
        for node_id, held in self.fleet.held_on.items():
            node = self.fleet.nodes.get(node_id)
            for deployment_id in held if node is None or not node.enabled else ():
                self._violation(self.position, f"deployment-{deployment_id}", f"held on disabled node {node_id}")

    def _check(self, position: int, stream: str, event: ev.Event) -> None:
        match event:
            case ev.LeaseGranted(node_id=node_id, generation=generation):
                node = self.fleet.nodes.get(node_id)
                if node is None or node.generation != generation or not node.enabled:
                    self._violation(
                        position, stream, f"lease for generation {generation}, which node {node_id} has not"
                    )
            case ev.CandidateCreated():
                self._check_candidate(position, stream, event)
            case ev.DeploymentCreated():
                candidate = self.states.get(f"candidate-{event.candidate_id}")
                approved = candidate.digest if isinstance(candidate, CandidateState) and candidate.approved_by else None
                if approved != event.candidate_digest:
                    self._violation(position, stream, "deployed without an approval of this exact digest")
            case ev.EvidenceRejected(reason=reason):
                self.rejected_count += 1
                _note(self.rejected, Finding(position, stream, f"{reason}: {event.message}"))
            case ev.WorkProgressed() | ev.WorkCompleted() | ev.WorkFailed() | ev.WorkCancelled():
                if event.signed is not None:
                    self._check_evidence(position, stream, event, event.signed)
            case _:
                pass

    def _check_candidate(self, position: int, stream: str, event: ev.CandidateCreated) -> None:
        probe = self.states.get(f"work-{event.probe_id}")
        if not isinstance(probe, WorkState) or probe.kind != "probe" or probe.stage != "completed":
            self._violation(position, stream, "there is no completed probe behind this candidate")
        elif probe.evidence_sha256 != event.evidence_sha256:
            self._violation(position, stream, "the probe's evidence is not what the candidate names")

    def _check_evidence(
        self,
        position: int,
        stream: str,
        event: ev.WorkProgressed | ev.WorkCompleted | ev.WorkFailed | ev.WorkCancelled,
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
        if (evidence.work_id, evidence.generation, evidence.attempt) != (
            event.work_id,
            event.generation,
            event.attempt,
        ):
            self._violation(position, stream, f"evidence {evidence.evidence_id} is about other work")
        if evidence.evidence_id in self._evidence_seen:
            self._violation(position, stream, f"evidence {evidence.evidence_id} counts twice")
        self._evidence_seen.add(evidence.evidence_id)
        says = evidence.statement
        agrees = (
            (isinstance(event, ev.WorkCompleted) and says == event.result)
            or (isinstance(event, ev.WorkProgressed) and isinstance(says, Progress) and says.stage == event.stage)
            or isinstance(event, ev.WorkFailed | ev.WorkCancelled)
        )
        if not agrees:
            self._violation(position, stream, f"event and evidence {evidence.evidence_id} say different things")

    def _violation(self, position: int, stream: str, what: str) -> None:
        self.violation_count += 1
        _note(self.violations, Finding(position, stream, what))


def _note(findings: list[Finding], finding: Finding) -> None:
    if len(findings) < FINDINGS_MAX:
        findings.append(finding)
