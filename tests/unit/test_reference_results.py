"""What no struct can say and the reference does, held against the program: results, tables, users, streams."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from nats.js.api import RetentionPolicy

from domain.deciding.decide import decide
from domain.deciding.outcomes import Accepted
from domain.deciding.world import NotLoaded, World
from domain.folding.fleet import Fleet
from domain.folding.fold import fold
from projections.rows import TABLES
from schemas import commands, evidence, subjects
from schemas.environments import fingerprint
from schemas.generate import contract, examples
from schemas.work import WorkOrder
from services.bus import STREAMS
from services.embedded.nats_conf import OPERATOR, node_user, permissions
from services.query.heard import SILENCE
from services.query.reader import RECEIPTS

ROUNDS_MAX = 20


class Numbers:
    """Ids in order."""

    def __init__(self) -> None:
        self.last = 0

    def token(self) -> str:
        self.last += 1
        return f"id_{self.last}"

    def secret(self) -> str:
        return "secret_" + self.token()


class Terms:
    lease_ms = 30_000
    session_ms = 10_000
    beat_ms = 1_000
    queue_ms = 60_000
    device_reserve_bytes = 0


class Plane:
    """Decide and fold, in memory. `results` collects the keys of each command's accepted result."""

    def __init__(self) -> None:
        self.world = World(Fleet(), Numbers(), Terms())
        self.world.now_ms = examples.AT_MS
        self.results: dict[str, set[str]] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.sent = 0

    def send(self, subject: str, /, **fields: Any) -> dict[str, Any]:
        self.sent += 1
        command = commands.BY_SUBJECT[subject](command_id=f"c_{self.sent}", actor="test", **fields)
        accepted = self.decide(command)
        self.results.setdefault(subject, set()).update(accepted.result)
        self.secrets[subject] = accepted.secret
        return accepted.result | accepted.secret

    def decide(self, command: commands.Command) -> Accepted:
        for _ in range(ROUNDS_MAX):
            try:
                outcome = decide(command, self.world)
            except NotLoaded as missing:
                self.world.states[missing.stream] = None
                continue
            assert isinstance(outcome, Accepted), outcome
            for recorded in outcome.events:
                before = self.world.states.get(recorded.stream)
                after, reason = fold(before, recorded.event)
                assert reason is None, (recorded, reason)
                self.world.states[recorded.stream] = after
                self.world.fleet.note(before, after)
            return outcome
        raise AssertionError("the decision asked for too many streams")

    def work(self, work_id: str, statement: Any) -> None:
        """Claim a work item as its node's worker and finish it with this statement."""
        order = self.send("lease.claim", work_id=work_id, node_id=examples.NODE, generation="1")
        said = evidence.Evidence(
            f"ev_{work_id}", examples.NODE, "1", self.sent, work_id, order["attempt"], examples.AT_MS, statement
        )
        signed = evidence.SignedEvidence(msgspec.json.encode(said).decode(), "")
        self.decide(
            commands.SubmitEvidence(command_id=said.evidence_id, actor="test", signed=signed, signature_valid=True)
        )


def statements() -> dict[str, Any]:
    reading = evidence.Reading(bytes=1)
    readings = [one.name for one in msgspec.structs.fields(evidence.Memory) if one.type is evidence.Reading]
    memory = evidence.Memory(**dict.fromkeys(readings, reading), reclaim_complete=True)
    health = evidence.Health(True, True, True, True, 1.0, "1f" * 32, 384)
    offline = evidence.OfflineProof(["landlock"], [], [evidence.Attempt("connect", True, "refused")], proven=True)
    mark = fingerprint(examples.ENVIRONMENT)
    return {
        "verify": evidence.Verified("here", len(examples.FILES), sum(entry.size for entry in examples.FILES), 1.0),
        "assess": evidence.Assessed(True, [], mark),
        "probe": evidence.Probed(mark, health, memory, offline, 1.0, 1.0, 1.0, 1.0, 1, 0),
        "load": evidence.Loaded(mark, health, memory, offline, 1.0, 1),
    }


@pytest.fixture(scope="module")
def plane() -> Plane:
    """The main job from files to a resident and back out, through every command that has a subject."""
    plane, says, node = Plane(), statements(), examples.NODE
    plane.send("node.enrol", node_id=node, credential_sha256=hashlib.sha256(examples.CREDENTIAL.encode()).hexdigest())
    register = examples.command_examples()["worker.register"]
    fields = {name: getattr(register, name) for name in register.__struct_fields__}
    plane.send("worker.register", **{name: fields[name] for name in fields if name not in ("command_id", "actor")})
    artifact_id = plane.send("artifact.register", name="a", files=examples.FILES)["artifact_id"]
    asked: dict[str, Any] = {"artifact_id": artifact_id, "node_id": node}
    plane.work(plane.send("artifact.verify", location="here", **asked)["work_id"], says["verify"])
    adapter, task = examples.PROFILE.adapter, examples.PROFILE.task
    assessment_id = plane.send("assessment.request", adapter=adapter, task=task, **asked)["work_id"]
    plane.work(assessment_id, says["assess"])
    profile_id = plane.send("profile.create", assessment_id=assessment_id, profile=examples.PROFILE)["profile_id"]
    candidate_id = plane.send("probe.request", assessment_id=assessment_id, profile_id=profile_id)["work_id"]
    plane.work(candidate_id, says["probe"])
    on_device = msgspec.structs.replace(examples.PROFILE, device="cuda")  # of which no claim here tells a reading
    profile_id = plane.send("profile.create", assessment_id=assessment_id, profile=on_device)["profile_id"]
    unmeasured = plane.send("probe.request", assessment_id=assessment_id, profile_id=profile_id)["work_id"]
    plane.send("lease.claim", work_id=unmeasured, node_id=node, generation="1")
    candidate = plane.world.states[f"candidate-{candidate_id}"]
    named = {"candidate_id": candidate_id, "candidate_digest": candidate.digest}  # type: ignore[union-attr]
    plane.send("approval.grant", **named)
    deployment_id = plane.send("deployment.create", name="d", capability=task, node_ids=[node], **named)[
        "deployment_id"
    ]
    job: dict[str, Any] = {"deployment_id": deployment_id, "node_id": node}
    load_id = plane.send("job.request", verb="load", **job)["work_id"]
    plane.send("job.request", verb="load", **job)
    order = plane.send("lease.claim", work_id=load_id, node_id=node, generation="1")
    held = {"work_id": load_id, "generation": "1", "token": order["token"], "attempt": order["attempt"]}
    plane.world.now_ms += Terms.lease_ms // 2
    plane.send("lease.renew", **held)
    plane.send("lease.release", **held)
    plane.send("work.cancel", work_id=load_id)
    plane.send("circuit.close", **job)
    plane.send("deployment.retire", deployment_id=deployment_id)
    plane.send("approval.revoke", candidate_id=candidate_id)
    plane.send("worker.leave", node_id=node, generation="1", credential=examples.CREDENTIAL)
    plane.send("node.disable", node_id=node)
    plane.send("node.enable", node_id=node)
    return plane


def test_results_are_what_the_reference_says(plane: Plane) -> None:
    assert plane.results == {name: set(holds) for name, holds in contract.RESULTS.items()}
    assert set(plane.results) == set(commands.BY_SUBJECT)


def test_only_a_claim_tells_a_secret_and_it_is_a_work_order(plane: Plane) -> None:
    assert [name for name, secret in plane.secrets.items() if secret] == ["lease.claim"]
    order = msgspec.convert(plane.secrets["lease.claim"], WorkOrder)
    assert order.kind == "load"
    assert order.files == examples.FILES


def test_the_queryable_tables_are_the_projected_ones() -> None:
    assert set(contract.TABLES) == set(TABLES) | {RECEIPTS, SILENCE}


def test_senders_may_send_what_the_reference_says() -> None:
    """The users of the NATS configuration are the senders the reference names."""
    for channel in contract.CHANNELS:
        for user, named in ((OPERATOR, contract.OPERATOR), (node_user(examples.NODE), contract.WORKER)):
            if named in channel.sender:
                allowed: Any = permissions(user)["publish"]
                assert any(subject.startswith(channel.prefix + ".") for subject in allowed["allow"]), (user, channel)
    denied: Any = permissions(OPERATOR)["publish"]
    assert {f"{subjects.RPC}.{name.partition('.')[0]}.>" for name in commands.RPC_ONLY} == set(denied["deny"])


def test_streams_keep_what_the_reference_says() -> None:
    made = {config.name: config for config in STREAMS}
    assert set(made) == {stream.name for stream in contract.STREAMS}
    channels = {channel.constant: channel for channel in contract.CHANNELS}
    for stream in contract.STREAMS:
        config = made[stream.name]
        assert config.subjects == [f"{channels[stream.channel].prefix}.>"]
        assert (config.retention is RetentionPolicy.WORK_QUEUE) == (stream.retention == "work queue")
        assert (config.max_msgs_per_subject == 1) == ("one message for each subject" in stream.retention)
        assert (config.max_age == 86_400) == ("for a day" in stream.retention)
