"""Forged logs and forged machines, to see each checker bite: events that no sound writer would have written."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from domain.folding.states import State
from schemas import events as ev
from schemas import evidence as se
from schemas.environments import RuntimeEnvironment, fingerprint
from schemas.events import TOPIC_OF, decode_event, encode_event
from schemas.profiles import RuntimeProfile
from schemas.work import AssessSpec, JobSpec, ProbeSpec
from services.eventlog.port import LogRow
from tests.simulation.checkers import Checker, Violation
from tests.simulation.checkers.truth import Active

ARTIFACT, PROFILE, SHA = "a" * 64, "b" * 64, "c" * 64
ADAPTER, TASK = "sentence_transformers", "embedding"
ENVIRONMENT = RuntimeEnvironment(python="3", platform="x", worker="0", packages={}, adapters={}, devices=[])
UNMEASURED = se.Reading(unavailable="forged")
STREAM_FIELDS = ("deployment", "candidate", "artifact", "profile", "work", "node")


class Log:
    """Shows forged transactions to checkers as a story does: each row, then a step."""

    def __init__(self, *checkers: Checker) -> None:
        self._checkers = checkers
        self._positions = itertools.count(1)
        self._versions: dict[str, int] = {}
        self._evidence = itertools.count(1)
        self._commands = itertools.count(1)
        self.rows: list[LogRow] = []

    def add(self, *events: tuple[type[ev.Event], dict[str, Any]]) -> None:
        """One transaction."""
        command_id = f"c{next(self._commands)}"
        for kind, fields in events:
            row = self.row(kind(**{"at_ms": 1_000, "command_id": command_id, "actor": "forged", **fields}))
            for checker in self._checkers:
                checker.see(row, decode_event(row.topic, row.state))
        self.step()

    def row(self, event: ev.Event) -> LogRow:
        noun = next(noun for noun in STREAM_FIELDS if hasattr(event, f"{noun}_id"))
        stream = f"{noun}-{getattr(event, f'{noun}_id')}"
        self._versions[stream] = self._versions.get(stream, 0) + 1
        row = LogRow(next(self._positions), stream, self._versions[stream], TOPIC_OF[type(event)], encode_event(event))
        self.rows.append(row)
        return row

    def step(self) -> None:
        for checker in self._checkers:
            checker.step()

    def signed(self, work_id: str, generation: str, attempt: int, statement: se.Statement, ident: str = "") -> Any:
        evidence = se.Evidence(ident or f"e{next(self._evidence)}", "n1", generation, 1, work_id, attempt, 0, statement)
        return se.SignedEvidence(msgspec.json.encode(evidence).decode(), base64.b64encode(b"forged").decode())


class ForgedTruth:
    """As checkers.truth.Truth, with whatever a test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.owners: list[tuple[str, Any]] = []
        self.ended: dict[int, float] = {}
        self.control: Active | None = Active(1, 0)
        self.states: Mapping[str, State | None] | None = None
        self.told: list[tuple[float, int | None, int | None]] = []
        self.attributed = self.quiet = True
        self.short: list[tuple[object, float, float]] = []
        self.took: list[tuple[float, object, int]] = []
        self.covered: list[str] = []

    def now_s(self) -> float:
        return self.at_s

    def sessions(self) -> Iterable[tuple[str, Any]]:
        return self.owners

    def ended_at_s(self, pid: int) -> float | None:
        return self.ended.get(pid)

    def active(self) -> Active | None:
        return self.control

    def memory(self) -> Mapping[str, State | None] | None:
        return self.states

    def readings(self) -> Iterable[tuple[float, int | None, int | None]]:
        return self.told

    def is_attributed(self) -> bool:
        return self.attributed

    def out_of_memory(self) -> Sequence[tuple[object, float, float]]:
        return self.short

    def taken(self) -> Iterable[tuple[float, object, int]]:
        return self.took

    def cover(self, what: str, count: int) -> None:
        self.covered += [what] * count

    def is_quiet(self) -> bool:
        return self.quiet


def broken(match: str) -> Any:
    return pytest.raises(Violation, match=match)


# --- transactions ---------------------------------------------------------------------------------------------

Forged = tuple[type[ev.Event], dict[str, Any]]


def enrolled() -> Forged:
    return ev.NodeEnrolled, {"node_id": "n1", "credential_sha256": SHA}


def registered(generation: int = 1, capabilities: dict[str, list[str]] | None = None) -> Forged:
    return ev.WorkerRegistered, {
        "node_id": "n1", "generation": str(generation), "boot_id": "b", "environment": ENVIRONMENT,
        "fingerprint": fingerprint(ENVIRONMENT),
        "capabilities": {ADAPTER: [TASK]} if capabilities is None else capabilities,
        "session_public_key": "", "artifact_root": "/", "inventory": [],
    }  # fmt: skip


def lost(generation: int = 1, cause: str = "WORKER_LOST") -> Forged:
    return ev.SessionLost, {"node_id": "n1", "generation": str(generation), "cause": cause, "silent_ms": 1}


def disabled() -> Forged:
    return ev.NodeDisabled, {"node_id": "n1", "reason": ""}


def requested(work_id: str, kind: str, deadline_ms: int = 60_000, *, adapter: str = ADAPTER) -> Forged:
    spec: Any = {
        "assess": AssessSpec(ARTIFACT, adapter, TASK),
        "probe": ProbeSpec(ARTIFACT, PROFILE, "assess1", SHA),
    }.get(kind) or JobSpec(kind, "d1", ARTIFACT, PROFILE)  # type: ignore[arg-type]
    return ev.WorkRequested, {
        "work_id": work_id, "node_id": "n1", "kind": kind, "spec": spec, "deadline_ms": deadline_ms,
    }  # fmt: skip


def granted(work_id: str, generation: int = 1, attempt: int = 1, until_ms: int = 7_000, **more: Any) -> Forged:
    return ev.LeaseGranted, {
        "work_id": work_id, "node_id": "n1", "generation": str(generation), "attempt": attempt, "token_sha256": SHA,
        "until_ms": until_ms, "deadline_ms": 90_000, **more,
    }  # fmt: skip


def failed(work_id: str, code: str = "LOAD_FAILED", message: str = "", **more: Any) -> Forged:
    return ev.WorkFailed, {
        "work_id": work_id, "generation": "1", "attempt": 1, "code": code, "message": message, **more,
    }  # fmt: skip


def cancelled(work_id: str) -> Forged:
    return ev.WorkCancelled, {"work_id": work_id, "generation": "1", "attempt": 1}


def completed(log: Log, work_id: str, result: se.Statement, generation: int = 1, attempt: int = 1) -> Forged:
    return ev.WorkCompleted, {
        "work_id": work_id, "generation": str(generation), "attempt": attempt, "result": result,
        "signed": log.signed(work_id, str(generation), attempt, result),
    }  # fmt: skip


def residency(state: str, work_id: str, generation: int = 0, **more: Any) -> Forged:
    return ev.ResidencyChanged, {
        "deployment_id": "d1", "node_id": "n1", "state": state, "generation": str(generation), "work_id": work_id,
        "cause": "", **more,
    }  # fmt: skip


def profile(device: str = "cpu", assessment_id: str = "assess1", **more: Any) -> Forged:
    made = RuntimeProfile(adapter=more.get("adapter", ADAPTER), task=TASK, device=device)  # type: ignore[arg-type]
    return ev.ProfileCreated, {"profile_id": PROFILE, "profile": made, "assessment_id": assessment_id}


def candidate(digest: str = SHA) -> Forged:
    return ev.CandidateCreated, {
        "candidate_id": "probe1", "candidate_digest": digest, "artifact_id": ARTIFACT, "profile_id": PROFILE,
        "fingerprint": SHA, "node_id": "n1", "probe_id": "probe1", "evidence_sha256": SHA, "adapter": ADAPTER,
        "task": TASK,
    }  # fmt: skip


def approved(digest: str = SHA) -> Forged:
    return ev.ApprovalGranted, {"candidate_id": "probe1", "candidate_digest": digest, "approver": "x", "note": ""}


def revoked() -> Forged:
    return ev.ApprovalRevoked, {"candidate_id": "probe1", "candidate_digest": SHA, "note": ""}


def deployed(digest: str = SHA, capability: str = TASK) -> Forged:
    return ev.DeploymentCreated, {
        "deployment_id": "d1", "name": "d", "candidate_id": "probe1", "candidate_digest": digest,
        "artifact_id": ARTIFACT, "profile_id": PROFILE, "fingerprint": SHA, "capability": capability,
        "node_ids": ["n1"],
    }  # fmt: skip


# --- statements -----------------------------------------------------------------------------------------------


def assessed(*, compatible: bool = True, weights_bytes: int = 100, reason: str = "") -> se.Assessed:
    reasons = [se.Reason("RUNTIME_INCOMPATIBLE", reason)] if reason else []  # type: ignore[arg-type]
    return se.Assessed(compatible, reasons, SHA, weights_bytes=weights_bytes)


def memory(own_bytes: int | None) -> se.Memory:
    own = UNMEASURED if own_bytes is None else se.Reading(bytes=own_bytes)
    return se.Memory(*[UNMEASURED] * 11, reclaim_complete=True, device_own_loaded=own)


def probed(own_bytes: int | None = None) -> se.Probed:
    health = se.Health(True, True, True, True, 1.0)
    offline = se.OfflineProof([], [], [], True)
    return se.Probed(SHA, health, memory(own_bytes), offline, 1.0, 1.0, 1.0, 1.0, 1, 0)


def loaded() -> se.Loaded:
    health, offline = se.Health(True, True, True, True, 1.0), se.OfflineProof([], [], [], True)
    return se.Loaded(SHA, health, memory(None), offline, 1.0, 1)


def drained() -> se.Drained:
    return se.Drained(0, 1.0, 0)
