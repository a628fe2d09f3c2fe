"""A Story: the rules run on a world in memory, one command after the other, with a clock that is set by hand.

`do` decides, settles and enacts as the writer does and keeps what it would have appended. `claim`, `say` and
the steps of the main job stand for a worker and a person. Ids and secrets are counted, so that the same
story gives the same log, byte for byte. `tampered` puts an event into the log that was never decided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from domain.audit import Auditor
from domain.deciding.decide import decide
from domain.deciding.outcomes import Accepted, Outcome, Rejected
from domain.deciding.settle import enact, settle
from domain.deciding.world import NotLoaded, World
from domain.folding.fleet import Fleet
from domain.folding.fold import fold
from domain.folding.states import CandidateState, DeploymentState, NodeState, State, WorkState
from schemas import commands as c
from schemas import evidence as se
from schemas.artifacts import FileEntry
from schemas.devices import DeviceReading
from schemas.environments import Device, RuntimeEnvironment
from schemas.events import Event
from schemas.evidence import Evidence, SignedEvidence
from schemas.profiles import RuntimeProfile
from schemas.work import WorkOrder
from tests.unit.domain import statements as says

S = TypeVar("S", bound=State)
CREDENTIAL = "the node's own credential"
ADAPTER, TASK = "sentence_transformers", "embedding"
FILES = [FileEntry("config.json", 100, "1" * 64), FileEntry("model.safetensors", 1_000, "2" * 64)]
PROFILE = RuntimeProfile(adapter=ADAPTER, task=TASK)
STREAMS_ASKED_MAX = 500
Sign = Callable[[str, str], str]  # (generation, payload) -> signature


class Terms(NamedTuple):
    lease_ms: int = 30_000
    session_ms: int = 10_000
    beat_ms: int = 1_000
    queue_ms: int = 600_000
    device_reserve_bytes: int = 1_000


class CountedIds:
    def __init__(self) -> None:
        self.tokens = 0
        self.secrets = 0

    def token(self) -> str:
        self.tokens += 1
        return f"id{self.tokens:04d}"

    def secret(self) -> str:
        self.secrets += 1
        return f"secret-number-{self.secrets:04d}"


class Line(NamedTuple):
    """One event as the log would have it."""

    position: int
    stream: str
    version: int
    event: Event


def environment(worker: str = "0.1.0") -> RuntimeEnvironment:
    return RuntimeEnvironment(
        python="3.11.9", platform="linux-x86_64", worker=worker, packages={"torch": "2.13.0"},
        adapters={ADAPTER: "1"}, devices=[Device("cpu", 0, "cpu")],
    )  # fmt: skip


def unsigned(generation: str, payload: str) -> str:
    return "unsigned"


class Story:
    def __init__(self, sign: Sign = unsigned, public_key: Callable[[str], str] = lambda generation: "key") -> None:
        self.ids = CountedIds()
        self.world = World(Fleet(), self.ids, Terms())
        self.world.now_ms = 1_000_000
        self.lines: list[Line] = []
        self.orders: dict[str, WorkOrder] = {}
        self.devices: list[DeviceReading] = []  # what every claim says that it measured
        self.commands = 0
        self.numbers = 0
        self._sign, self._public_key = sign, public_key

    # --- deciding -------------------------------------------------------------------------------------------

    def do(self, kind: type[c.Command], **fields: Any) -> Outcome:
        """Decide one command and take in what follows from it."""
        self.commands += 1
        fields = {"command_id": f"c{self.commands:04d}", "actor": "ann", **fields}
        return self.decide(kind(**fields))

    def decide(self, command: c.Command) -> Outcome:
        for _ in range(STREAMS_ASKED_MAX):
            try:
                outcome = decide(command, self.world)
                changes = settle(outcome, self.world) if isinstance(outcome, Accepted) else []
            except NotLoaded as need:
                self.world.states[need.stream] = None  # the story holds every stream there is
                continue
            for change in changes:
                self.lines.append(Line(len(self.lines) + 1, change.stream, change.version, change.event))
            enact(changes, self.world)
            return outcome
        raise AssertionError("the decision asked for too many streams")

    def accept(self, kind: type[c.Command], **fields: Any) -> Accepted:
        outcome = self.do(kind, **fields)
        assert isinstance(outcome, Accepted), outcome
        return outcome

    def refuse(self, kind: type[c.Command], **fields: Any) -> Rejected:
        """The refusal of a command, which must leave no trace in the log."""
        before = len(self.lines)
        outcome = self.do(kind, **fields)
        assert isinstance(outcome, Rejected), outcome
        assert len(self.lines) == before
        return outcome

    def wait(self, ms: int) -> None:
        self.world.now_ms += ms

    # --- what a worker does ---------------------------------------------------------------------------------

    def enrol(self, node_id: str = "n1") -> None:
        self.accept(c.EnrolNode, node_id=node_id, credential_sha256=hashlib.sha256(CREDENTIAL.encode()).hexdigest())

    def start_worker(self, node_id: str = "n1", worker: str = "0.1.0") -> str:
        """A worker process starts; its generation."""
        upcoming = str(int(self.node(node_id).generation) + 1)
        accepted = self.accept(
            c.RegisterWorker, node_id=node_id, credential=CREDENTIAL, boot_id=f"boot{upcoming}",
            environment=environment(worker), capabilities={ADAPTER: [TASK]},
            session_public_key=self._public_key(upcoming), artifact_root="/srv/artifacts", inventory=[],
        )  # fmt: skip
        generation = accepted.result["generation"]
        assert generation == upcoming
        return upcoming

    def claim(self, work_id: str, node_id: str = "n1") -> WorkOrder:
        accepted = self.ask_for(work_id, node_id)
        order = msgspec.convert(accepted.secret, WorkOrder)
        self.orders[work_id] = order
        return order

    def ask_for(self, work_id: str, node_id: str = "n1") -> Accepted:
        """A claim that need not be granted."""
        generation = self.node(node_id).generation
        return self.accept(c.ClaimLease, work_id=work_id, node_id=node_id, generation=generation, devices=self.devices)

    def say(self, work_id: str, statement: se.Statement, *, signature_valid: bool = True, **fields: Any) -> Accepted:
        """The holder's signed word about its work, under the lease it last claimed."""
        self.numbers += 1
        order = self.orders.get(work_id)
        values: dict[str, Any] = {
            "evidence_id": f"e{self.numbers:04d}", "node_id": self.work(work_id).node_id if order else "n1",
            "generation": order.generation if order else "1", "number": self.numbers, "work_id": work_id,
            "attempt": order.attempt if order else 1, "seen_at_ms": self.world.now_ms, "statement": statement,
            **fields,
        }  # fmt: skip
        payload = msgspec.json.encode(Evidence(**values)).decode()
        signed = SignedEvidence(payload, self._sign(values["generation"], payload))
        outcome = self.decide(
            c.SubmitEvidence(
                command_id=values["evidence_id"], actor=f"worker:{values['node_id']}", signed=signed,
                signature_valid=signature_valid,
            )
        )  # fmt: skip
        assert isinstance(outcome, Accepted), outcome
        return outcome

    def finish(self, work_id: str, statement: se.Statement, node_id: str = "n1") -> str:
        """Claim work and end it with `statement`, which has to be accepted."""
        self.claim(work_id, node_id)
        assert self.say(work_id, statement).result == {"evidence": "accepted"}
        return work_id

    # --- the main job, step by step -------------------------------------------------------------------------

    def register_artifact(self, files: list[FileEntry] | None = None) -> str:
        accepted = self.accept(c.RegisterArtifact, name="mini", files=FILES if files is None else files)
        return str(accepted.result["artifact_id"])

    def verified_artifact(self, node_id: str = "n1") -> str:
        artifact_id = self.register_artifact()
        work_id = self.work_for(c.VerifyArtifact, artifact_id=artifact_id, node_id=node_id, location="models/mini")
        self.finish(work_id, says.verified(), node_id)
        return artifact_id

    def assessment(self, *, compatible: bool = True) -> str:
        """A node with a worker, a verified set, and a completed assessment of it; the assessment's id."""
        if "n1" not in self.world.fleet.nodes:
            self.enrol()
            self.start_worker()
        artifact_id = self.verified_artifact()
        work_id = self.work_for(c.RequestAssessment, artifact_id=artifact_id, node_id="n1", adapter=ADAPTER, task=TASK)
        return self.finish(work_id, says.assessed(self.fingerprint(), compatible=compatible))

    def probe(self, profile: RuntimeProfile = PROFILE) -> str:
        """All up to a requested probe; its work id."""
        assessment_id = self.assessment()
        profile_id = self.accept(c.CreateProfile, assessment_id=assessment_id, profile=profile).result["profile_id"]
        return self.work_for(c.RequestProbe, assessment_id=assessment_id, profile_id=profile_id)

    def candidate(self, profile: RuntimeProfile = PROFILE) -> CandidateState:
        work_id = self.probe(profile)
        self.finish(work_id, says.probed(self.fingerprint()))
        return self.get(CandidateState, f"candidate-{work_id}")

    def approve(self, candidate: CandidateState) -> Accepted:
        return self.accept(
            c.GrantApproval, candidate_id=candidate.candidate_id, candidate_digest=candidate.digest, actor="pat"
        )

    def deploy(self, candidate: CandidateState, name: str = "search") -> str:
        accepted = self.accept(
            c.CreateDeployment, name=name, candidate_id=candidate.candidate_id, candidate_digest=candidate.digest,
            capability=TASK, node_ids=["n1"],
        )  # fmt: skip
        return str(accepted.result["deployment_id"])

    def deployment(self) -> str:
        candidate = self.candidate()
        self.approve(candidate)
        return self.deploy(candidate)

    def job(self, deployment_id: str, verb: str, node_id: str = "n1") -> str:
        return self.work_for(c.RequestJob, deployment_id=deployment_id, node_id=node_id, verb=verb)

    def resident(self) -> str:
        """All up to a loaded deployment; its id."""
        deployment_id = self.deployment()
        self.load(deployment_id)
        return deployment_id

    def load(self, deployment_id: str) -> str:
        return self.finish(self.job(deployment_id, "load"), says.loaded(self.fingerprint()))

    def work_for(self, kind: type[c.Command], **fields: Any) -> str:
        return str(self.accept(kind, **fields).result["work_id"])

    # --- looking --------------------------------------------------------------------------------------------

    def get(self, kind: type[S], stream: str) -> S:
        state = self.world.states.get(stream)
        assert isinstance(state, kind), (stream, state)
        return state

    def work(self, work_id: str) -> WorkState:
        return self.get(WorkState, f"work-{work_id}")

    def node(self, node_id: str = "n1") -> NodeState:
        return self.get(NodeState, f"node-{node_id}")

    def residency(self, deployment_id: str, node_id: str = "n1") -> str:
        return self.get(DeploymentState, f"deployment-{deployment_id}").residency(node_id)

    def fingerprint(self, node_id: str = "n1") -> str:
        return str(self.node(node_id).fingerprint)

    def events(self, kind: type[Event] = Event) -> list[Event]:
        return [line.event for line in self.lines if isinstance(line.event, kind)]

    def since(self, position: int) -> list[str]:
        """The names of the events after a position."""
        return [type(line.event).__name__ for line in self.lines[position:]]

    def tampered(self, stream: str, event: Event) -> list[Line]:
        """The log with one more event in it, at its stream's next version, that nobody decided."""
        version = self.world.versions.get(stream, 0) + 1
        return [*self.lines, Line(len(self.lines) + 1, stream, version, event)]


def folded(lines: list[Line]) -> dict[str, State]:
    states: dict[str, State] = {}
    for line in lines:
        after, _ = fold(states.get(line.stream), line.event)
        if after is not None:
            states[line.stream] = after
    return states


def audited(lines: list[Line], signature_valid: Callable[[str, SignedEvidence], bool] | None = None) -> Auditor:
    auditor = Auditor(signature_valid or (lambda key, signed: True))
    for line in lines:
        auditor.take(*line)
    auditor.finish()
    return auditor
