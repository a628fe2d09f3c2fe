"""Random stories: any command by anybody at any time, the clock moving, and the invariants after every step.

Commands are chosen without regard to whether they make sense: old generations claim, holders of ended leases
speak, wrong answers are given to work, nodes come and go. `TENURE_STORIES` multiplies how many are told.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from domain.deciding.outcomes import Accepted, Outcome
from domain.folding.states import CandidateState, DeploymentState, NodeState, State, WorkState
from schemas import commands as c
from schemas import evidence as se
from schemas.codes import Code
from schemas.devices import DeviceReading
from schemas.events import EvidenceRejected
from schemas.work import WorkOrder
from tests.unit.domain import statements as says
from tests.unit.domain.invariants import check
from tests.unit.domain.story import ADAPTER, CREDENTIAL, PROFILE, TASK, Story, audited

STORIES, STEPS = 50 * int(os.environ.get("TENURE_STORIES", "1")), 70
NODES = ("n1", "n2")
CODES = (Code.LOAD_FAILED, Code.OUT_OF_MEMORY, Code.CHILD_DIED, Code.ARTIFACT_DIGEST_MISMATCH)
pick = st.integers(0, 2**16)
nodes = st.sampled_from(NODES)
seldom = st.sampled_from([False, False, False, True])
mostly = st.sampled_from([True, True, True, False])
answers = st.sampled_from(["right", "right", "right", "progress", "failed", "cancelled", "other"])


class RandomStory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.story = Story()
        self.story.devices = [DeviceReading(0, 200_000, 0, 0, 0)]
        self.given: list[WorkOrder] = []  # every order ever given out, ended ones too

    # --- beginnings, so that late states are reached often ----------------------------------------------------

    @initialize(begin=st.sampled_from(["resident", "deployed", "on a device", "on a device", "candidate", "nothing"]))
    def begin(self, begin: str) -> None:
        story = self.story
        match begin:
            case "candidate":
                story.candidate()
            case "deployed":
                story.deployment()
            case "resident":
                story.resident()
            case "on a device":
                probe = story.probe(replace(PROFILE, device="cuda"))
                memory = says.on_device(None, 0, 60_000)
                story.finish(probe, says.probed(story.fingerprint(), memory=memory))
                candidate = story.get(CandidateState, f"candidate-{probe}")
                story.approve(candidate)
                story.load(story.deploy(candidate))
                story.deploy(candidate, "one")
        self.given.extend(story.orders.values())

    # --- nodes and workers ------------------------------------------------------------------------------------

    @rule(node=nodes, disable=seldom)
    def toggle(self, node: str, disable: bool) -> None:
        self.story.do(c.DisableNode if disable else c.EnableNode, node_id=node)

    @rule(node=nodes, changed=seldom)
    def start(self, node: str, changed: bool) -> None:
        """A worker where there is none, or, seldom, one that takes over with other software."""
        if f"node-{node}" not in self.story.world.states or self.story.world.states[f"node-{node}"] is None:
            self.story.enrol(node)
        if self.story.node(node).enabled and (changed or self.story.node(node).session != "alive"):
            self.story.start_worker(node, "0.2.0" if changed and self.story.numbers % 2 else "0.1.0")

    @rule(node=nodes, current=seldom, leaves=st.booleans())
    def end_session(self, node: str, current: bool, leaves: bool) -> None:
        generation = str(max(0, int(self._generation(node)) - (not current)))
        if leaves:
            self.story.do(c.LeaveWorker, node_id=node, generation=generation, credential=CREDENTIAL)
        else:
            self.story.do(c.LoseSession, node_id=node, generation=generation, silent_ms=10_001)

    # --- gates ------------------------------------------------------------------------------------------------

    @rule(node=nodes)
    def verify(self, node: str) -> None:
        artifact_id = self.story.register_artifact()
        self.story.do(c.VerifyArtifact, artifact_id=artifact_id, node_id=node, location="models/mini")

    @rule(node=nodes)
    def assess(self, node: str) -> None:
        artifact_id = self.story.register_artifact()
        self.story.do(c.RequestAssessment, artifact_id=artifact_id, node_id=node, adapter=ADAPTER, task=TASK)

    @rule(number=pick, proof=st.booleans(), device=st.sampled_from(["cpu", "cuda", "cuda"]))
    def probe(self, number: int, proof: bool, device: Any) -> None:
        work = self._one(WorkState, number)
        if work is None:
            return
        profile = replace(PROFILE, require_offline_proof=proof, device=device)
        made = self.story.do(c.CreateProfile, assessment_id=work.work_id, profile=profile)
        if isinstance(made, Accepted):
            self.story.do(c.RequestProbe, assessment_id=work.work_id, profile_id=made.result["profile_id"])

    @rule(number=pick, grant=st.booleans())
    def approve(self, number: int, grant: bool) -> None:
        candidate = self._one(CandidateState, number)
        if candidate is not None and grant:
            self.story.approve(candidate)
        elif candidate is not None:
            self.story.do(c.RevokeApproval, candidate_id=candidate.candidate_id)

    @rule(number=pick, name=st.sampled_from(["one", "two"]), both=st.booleans())
    def deploy(self, number: int, name: str, both: bool) -> None:
        candidate = self._one(CandidateState, number)
        if candidate is not None:
            self.story.do(
                c.CreateDeployment, name=name, candidate_id=candidate.candidate_id, candidate_digest=candidate.digest,
                capability=TASK, node_ids=list(NODES) if both else [candidate.node_id],
            )  # fmt: skip

    @rule(number=pick)
    def retire(self, number: int) -> None:
        deployment = self._one(DeploymentState, number)
        if deployment is not None:
            self.story.do(c.RetireDeployment, deployment_id=deployment.deployment_id)

    @rule(number=pick, node=nodes, verb=st.sampled_from(["load", "load", "health", "drain", "unload"]))
    def job(self, number: int, node: str, verb: str) -> None:
        deployment = self._one(DeploymentState, number)
        if deployment is not None:
            self.story.do(c.RequestJob, deployment_id=deployment.deployment_id, node_id=node, verb=verb)

    # --- leases -----------------------------------------------------------------------------------------------

    @rule(number=pick, back=st.sampled_from([0, 0, 0, 1]), node=st.sampled_from([None, None, None, *NODES]))
    def claim_some(self, number: int, back: int, node: str | None) -> None:
        work = self._one(WorkState, number, only_open=number % 4 != 0)
        if work is not None:
            self.claim(work, back, node)

    def claim(self, work: WorkState, back: int, node: str | None) -> None:
        node = node or work.node_id
        generation = str(max(0, int(self._generation(node)) - back))
        outcome = self.story.do(
            c.ClaimLease, work_id=work.work_id, node_id=node, generation=generation, devices=self.story.devices
        )
        if isinstance(outcome, Accepted) and "refused" in outcome.result:
            stopped = work.lease is not None and work.cancel_requested  # its holder never heard of its grant
            expected = Code.WORK_CANCELLED if stopped else Code.DEVICE_MEMORY_SHORT
            assert self.story.work(work.work_id).code is expected
        elif isinstance(outcome, Accepted):
            assert back == 0 or self._generation(node) == generation == "0", "an older generation was granted a lease"
            self.given.append(_order(outcome))

    @rule(number=pick, verb=st.sampled_from([c.RenewLease, c.ReleaseLease]), right=st.booleans())
    def hold(self, number: int, verb: type[c.Command], right: bool) -> None:
        order = self._given(number)
        if order is not None:
            outcome = self.story.do(
                verb, work_id=order.work_id, generation=order.generation, attempt=order.attempt,
                token=order.token if right else "guess",
            )  # fmt: skip
            assert right or not isinstance(outcome, Accepted)

    @rule(used=st.integers(0, 150_000), own=st.sampled_from([None, 0, 1]))
    def measure(self, used: int, own: int | None) -> None:
        """What workers measure from now on: used by others, by themselves, or nobody can tell by whom."""
        own_bytes = None if own is None else own * used
        self.story.devices = [DeviceReading(0, 200_000, used, own_bytes)]

    @rule(number=pick, node=nodes)
    def close_circuit(self, number: int, node: str) -> None:
        deployment = self._one(DeploymentState, number)
        if deployment is not None and number % 5 == 0:
            self.story.do(c.CloseCircuit, deployment_id=deployment.deployment_id, node_id=node)

    @rule(number=pick)
    def cancel(self, number: int) -> None:
        work = self._one(WorkState, number, only_open=True)
        if work is not None:
            self.story.do(c.CancelWork, work_id=work.work_id)

    @rule(number=pick, kind=answers, sound=mostly)
    def work_off(self, number: int, kind: str, sound: bool) -> None:
        """Claim and answer at once, as a worker does that has nothing else to do."""
        work = self._one(WorkState, number, only_open=True)
        if work is None or not self.story.node(work.node_id).enabled:
            return
        self.claim(work, 0, None)
        if self.given and self.given[-1].work_id == work.work_id:
            self._speak(self.given[-1], self._statement(self.given[-1], kind, number, sound), True)

    @rule(number=pick, node=nodes, kind=st.sampled_from(["right", "failed", "failed"]), times=st.integers(1, 4))
    def load_off(self, number: int, node: str, kind: str, times: int) -> None:
        """The same deployment loaded again and again, as somebody does who doesn't look at the codes."""
        deployment = self._one(DeploymentState, number)
        for _ in range(times if deployment is not None else 0):
            asked = self.story.do(c.RequestJob, deployment_id=deployment.deployment_id, node_id=node, verb="load")
            work_id = asked.result.get("work_id") if isinstance(asked, Accepted) else None
            if work_id is None:
                return
            self.claim(self.story.work(work_id), 0, None)
            if self.given and self.given[-1].work_id == work_id:
                self._speak(self.given[-1], self._statement(self.given[-1], kind, number % 3, True), True)

    # --- evidence ---------------------------------------------------------------------------------------------

    @rule(number=pick, kind=answers, sound=mostly, signed=mostly)
    def say(self, number: int, kind: str, sound: bool, signed: bool) -> None:
        order = self._given(number)
        if order is None:
            return
        statement = self._statement(order, kind, number, sound)
        self._speak(order, statement, signed)

    @rule(number=pick, deployment=pick, signed=st.booleans())
    def lose_resident(self, number: int, deployment: int, signed: bool) -> None:
        order, state = self._given(number), self._one(DeploymentState, deployment)
        if order is not None and state is not None:
            died = se.ResidentLost(deployment_id=state.deployment_id, code=Code.CHILD_DIED, message="signal 9")
            self._speak(order, died, signed)

    def _speak(self, order: WorkOrder, statement: se.Statement, signed: bool) -> None:
        story, work = self.story, self.story.work(order.work_id)
        fenced = order.generation != self._generation(work.node_id) or not signed
        before = {stream: _without_count(state) for stream, state in story.world.states.items()}
        story.orders[order.work_id] = order
        accepted = story.say(order.work_id, statement, signature_valid=signed)
        if fenced:
            assert accepted.result["evidence"] == "rejected"
        if accepted.result["evidence"] == "rejected":
            assert isinstance(story.lines[-1].event, EvidenceRejected)
            assert {s: _without_count(state) for s, state in story.world.states.items() if s in before} == before

    def _statement(self, order: WorkOrder, kind: str, number: int, sound: bool) -> se.Statement:
        fingerprint = self._node(self.story.work(order.work_id).node_id).fingerprint or "a" * 64
        right: dict[str, se.Statement] = {
            "verify": says.verified(2 if sound else 1),
            "assess": says.assessed(fingerprint, compatible=sound),
            "probe": replace(
                says.probed(fingerprint), offline=says.offline(proven=sound), memory=says.on_device(None, 0, 60_000)
            ),
            "load": replace(says.loaded(fingerprint), health=says.health(model=sound)),
            "health": se.HealthChecked(says.health(model=sound), 1),
            "drain": says.drained(0 if sound else 3),
            "unload": says.unloaded(reclaim_complete=sound),
        }
        stages = ("preparing", "loading", "healthchecking", "ready", "unloading")
        failed = says.failed(CODES[number % len(CODES)])
        others: dict[str, se.Statement] = {
            "right": right[order.kind], "progress": se.Progress(stages[number % 5]), "failed": failed,
            "cancelled": se.WorkCancelled("loading"), "other": sorted(right.items())[number % 7][1],
        }  # fmt: skip
        return others[kind]

    # --- time -------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 5_000, 15_000, 15_001, 15_002, 30_001, 200_000]), tick=st.booleans())
    def time_passes(self, ms: int, tick: bool) -> None:
        self.story.wait(ms)
        if not tick:
            return
        for work in list(self.story.world.fleet.open_work.values()):
            if work.lease is not None:
                self.story.accept(c.ExpireLease, work_id=work.work_id, attempt=work.lease.attempt)
            self.story.accept(c.PassDeadline, work_id=work.work_id)
        now_ms = self.story.world.now_ms
        for work in self.story.world.fleet.open_work.values():
            assert work.deadline_ms >= now_ms, "open past its deadline"
            assert work.lease is None or work.lease.until_ms >= now_ms, "leased past its lease"

    # --- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def invariants_hold(self) -> None:
        check(self.story)

    def teardown(self) -> None:
        auditor = audited(self.story.lines)
        assert auditor.violations == []
        assert auditor.stale == []

    # --- choosing ---------------------------------------------------------------------------------------------

    def _one(self, kind: type[Any], number: int, *, only_open: bool = False) -> Any:
        """One of the states of a kind, None where there are none."""
        found = [state for state in self.story.world.states.values() if isinstance(state, kind)]
        if only_open:
            found = [state for state in found if not state.ended]
        return found[number % len(found)] if found else None

    def _given(self, number: int) -> WorkOrder | None:
        """One of the orders given out, the newest ones more often."""
        if not self.given:
            return None
        recent = self.given[-3:] if number % 3 else self.given
        return recent[number % len(recent)]

    def _node(self, node_id: str) -> NodeState:
        return self.story.node(node_id)

    def _generation(self, node_id: str) -> str:
        state = self.story.world.states.get(f"node-{node_id}")
        return state.generation if isinstance(state, NodeState) else "0"


def _order(outcome: Outcome) -> WorkOrder:
    assert isinstance(outcome, Accepted)
    return msgspec.convert(outcome.secret, WorkOrder)


def _without_count(state: State | None) -> State | None:
    """A state without the count of rejected evidence, which is all that rejected evidence may change."""
    return replace(state, rejected_evidence=0) if isinstance(state, WorkState) else state


RandomStory.TestCase.settings = settings(
    max_examples=STORIES, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRandomStories = RandomStory.TestCase
