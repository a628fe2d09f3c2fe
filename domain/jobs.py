"""ServingJobs: load, health, drain, unload of one deployment on one node.

One load at a time: who asks while a load is running gets that load's work id, and who asks for what
already holds gets an accepted reply with no work. A transition in progress is ended only by its owner.
A load waits until every drain and unload of what was there before has ended, because those name the
deployment and would reach what the load brings. What ended by itself too often is not loaded for a while
(`domain.circuits`).
"""

from __future__ import annotations

from domain import circuits
from domain.bindings import bound
from domain.deciding.outcomes import Accepted, Outcome, Recorded, Rejected
from domain.deciding.world import World
from domain.folding.states import CandidateState, DeploymentState, NodeState, stream_of
from domain.gates import node_refused, request_work
from schemas.codes import Code
from schemas.commands import RequestJob
from schemas.events import ResidencyChanged
from schemas.tokens import RESIDENTS_PER_NODE_MAX
from schemas.work import JobSpec

# verb -> states it may start from
STARTS_FROM: dict[str, frozenset[str]] = {
    "load": frozenset({"absent", "lost", "failed"}),
    "health": frozenset({"resident", "draining"}),
    "drain": frozenset({"resident"}),
    "unload": frozenset({"resident", "draining", "failed"}),
}
# verb -> state while it runs, and states in which it is already done
MOVES_TO = {"load": "loading", "drain": "draining", "unload": "unloading"}
DONE_IN = {"load": ("resident",), "drain": ("draining",), "unload": ("absent",), "health": ()}


def request(command: RequestJob, world: World) -> Outcome:
    deployment = bound(command.deployment_id, command.node_id, world)
    if isinstance(deployment, Rejected):
        return deployment
    verb, state = command.verb, deployment.residency(command.node_id)
    running = world.fleet.open_job(deployment.deployment_id, command.node_id, verb)
    if running is not None and verb != "health":
        return Accepted(result={"work_id": running.work_id, "state": state, "joined": True})
    if state in DONE_IN[verb]:
        return Accepted(result={"work_id": None, "state": state})
    if state not in STARTS_FROM[verb]:
        return Rejected(Code.RESIDENCY_CONFLICT, f"cannot {verb}: it is {state} on node {command.node_id}")
    refused = node_refused(command.node_id, world)
    if refused is None and verb == "load":
        refused = _load_refused(deployment, command.node_id, world)
    if refused is not None:
        return refused
    return _open(command, deployment, world)


def _open(command: RequestJob, deployment: DeploymentState, world: World) -> Accepted:
    spec = JobSpec(command.verb, deployment.deployment_id, deployment.artifact_id, deployment.profile_id)
    accepted = request_work(command, command.verb, command.node_id, spec, world)
    moves_to = MOVES_TO.get(command.verb)
    if moves_to is None:
        return accepted
    held = deployment.residencies.get(command.node_id)
    event = ResidencyChanged(
        deployment_id=deployment.deployment_id, node_id=command.node_id, state=moves_to,  # type: ignore[arg-type]
        generation="0" if moves_to == "loading" or held is None else held.generation,
        work_id=accepted.result["work_id"], cause=f"{command.verb} requested", **world.stamp(command),
    )  # fmt: skip
    moved = Recorded(stream_of("deployment", deployment.deployment_id), event)
    return Accepted([*accepted.events, moved], {**accepted.result, "state": moves_to})


def _load_refused(deployment: DeploymentState, node_id: str, world: World) -> Rejected | None:
    candidate = world.get(CandidateState, "candidate", deployment.candidate_id)
    if candidate is None or candidate.approved_by is None or candidate.digest != deployment.candidate_digest:
        return Rejected(
            Code.CANDIDATE_NOT_APPROVED, f"the approval of candidate {deployment.candidate_id} does not hold"
        )
    node = world.get(NodeState, "node", node_id)
    if node is None or node.fingerprint != deployment.fingerprint:
        return Rejected(Code.ENVIRONMENT_CHANGED, f"node {node_id} no longer runs what the candidate was probed on")
    looping = circuits.load_refused(deployment, node_id, world.now_ms)
    if looping is not None:
        return looping
    for verb in ("drain", "unload"):
        earlier = world.fleet.open_job(deployment.deployment_id, node_id, verb)
        if earlier is not None:
            return Rejected(Code.RESIDENCY_CONFLICT, f"{verb} {earlier.work_id} of what was there has not ended yet")
    held = len(world.fleet.holders_of(node_id))
    if held >= RESIDENTS_PER_NODE_MAX:
        return Rejected(Code.NODE_FULL, f"node {node_id} holds {held} deployments")
    return None
