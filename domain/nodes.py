"""Nodes and their workers: enrolment, generations, sessions.

A worker process that starts gets the node's next generation. In the same transaction every lease of the
older ones ends and what they held resident is lost, so that from then on fencing can be decided inside
each stream by itself. A lost session does the same without a successor.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from domain.deciding.outcomes import Accepted, Outcome, Recorded, Rejected
from domain.deciding.world import World
from domain.folding.states import DeploymentState, NodeState, WorkState, stream_of
from domain.leases import REPEATABLE, end_hold, fail
from schemas.codes import Code
from schemas.commands import Command, DisableNode, EnableNode, EnrolNode, LeaveWorker, LoseSession, RegisterWorker
from schemas.environments import fingerprint
from schemas.events import NodeDisabled, NodeEnabled, NodeEnrolled, ResidencyChanged, SessionLost, WorkerRegistered


def enrol(command: EnrolNode, world: World) -> Outcome:
    node = world.get(NodeState, "node", command.node_id)
    result = {"node_id": command.node_id}
    if node is not None:
        if node.credential_sha256 == command.credential_sha256:
            return Accepted(result=result)
        return Rejected(Code.NAME_TAKEN, f"node {command.node_id} is enrolled with another credential")
    event = NodeEnrolled(node_id=command.node_id, credential_sha256=command.credential_sha256, **world.stamp(command))
    return Accepted([Recorded(stream_of("node", command.node_id), event)], result)


def enable(command: EnableNode, world: World) -> Outcome:
    node = world.get(NodeState, "node", command.node_id)
    if node is None:
        return _unknown(command.node_id)
    if node.enabled:
        return Accepted(result={"node_id": node.node_id})
    event = NodeEnabled(node_id=node.node_id, **world.stamp(command))
    return Accepted([Recorded(stream_of("node", node.node_id), event)], {"node_id": node.node_id})


def disable(command: DisableNode, world: World) -> Outcome:
    """No work stays open and no residency stays held on a disabled node."""
    node = world.get(NodeState, "node", command.node_id)
    if node is None:
        return _unknown(command.node_id)
    if not node.enabled:
        return Accepted(result={"node_id": node.node_id})
    stamp = world.stamp(command)
    events = [
        Recorded(stream_of("node", node.node_id), NodeDisabled(node_id=node.node_id, reason=command.reason, **stamp))
    ]
    ended: set[str] = set()
    for open_work in world.fleet.work_of(node.node_id):
        work = _loaded(open_work, world)
        events += fail(work, Code.NODE_DISABLED, command.reason or "the node was disabled", stamp)
        if work.kind in ("load", "unload") and work.deployment_id:
            ended.add(work.deployment_id)
    events += _lose_residents(node.node_id, "node disabled", ended, world, stamp)
    return Accepted(events, {"node_id": node.node_id})


def register(command: RegisterWorker, world: World) -> Outcome:
    node = world.get(NodeState, "node", command.node_id)
    refused = _credential_refused(command.node_id, command.credential, node)
    if refused is not None or node is None:
        return refused or _unknown(command.node_id)
    if not node.enabled:
        return Rejected(Code.NODE_DISABLED, f"node {node.node_id} is disabled")
    stamp = world.stamp(command)
    generation = str(int(node.generation) + 1)
    event = WorkerRegistered(
        node_id=node.node_id, generation=generation, boot_id=command.boot_id, environment=command.environment,
        fingerprint=fingerprint(command.environment), capabilities=command.capabilities,
        session_public_key=command.session_public_key, artifact_root=command.artifact_root,
        inventory=command.inventory, **stamp,
    )  # fmt: skip
    events = [Recorded(stream_of("node", node.node_id), event)]
    events += _drop_holds(node, f"generation {generation} took over", world, stamp)
    limits = world.limits
    result = {
        "generation": generation, "session_ms": limits.session_ms, "beat_ms": limits.beat_ms,
        "lease_ms": limits.lease_ms,
    }  # fmt: skip
    return Accepted(events, result)


def leave(command: LeaveWorker, world: World) -> Outcome:
    node = world.get(NodeState, "node", command.node_id)
    refused = _credential_refused(command.node_id, command.credential, node)
    if refused is not None or node is None:
        return refused or _unknown(command.node_id)
    return _lose(command, node, command.generation, "left", 0, world)


def lose_session(command: LoseSession, world: World) -> Outcome:
    node = world.get(NodeState, "node", command.node_id)
    if node is None:
        return _unknown(command.node_id)
    return _lose(command, node, command.generation, str(Code.WORKER_LOST), command.silent_ms, world)


def _lose(command: Command, node: NodeState, generation: str, cause: str, silent_ms: int, world: World) -> Outcome:
    if node.session != "alive" or generation != node.generation:
        return Accepted()
    stamp = world.stamp(command)
    lost = SessionLost(node_id=node.node_id, generation=generation, cause=cause, silent_ms=silent_ms, **stamp)
    detail = "the worker left" if cause == "left" else f"the worker was silent for {silent_ms} ms"
    return Accepted([Recorded(stream_of("node", node.node_id), lost), *_drop_holds(node, detail, world, stamp)])


def _drop_holds(node: NodeState, detail: str, world: World, stamp: dict[str, Any]) -> list[Recorded]:
    """End every lease and lose every resident of the generation that is over.

    Work that asks something of a resident ends with it even if nobody has claimed it: the next generation
    holds another process, which an old drain or unload must not reach.
    """
    events: list[Recorded] = []
    settled: set[str] = set()
    for open_work in world.fleet.work_of(node.node_id):
        work = _loaded(open_work, world)
        if work.lease is not None:
            events += end_hold(work, Code.WORKER_LOST, detail, world, stamp)
        elif work.kind not in REPEATABLE:
            events += fail(work, Code.WORKER_LOST, detail, stamp)
        if work.kind in ("load", "unload") and work.deployment_id:
            settled.add(work.deployment_id)  # still to be done, or settled by its own failure just now
    return events + _lose_residents(node.node_id, detail, settled, world, stamp)


def _lose_residents(
    node_id: str, detail: str, settled: set[str], world: World, stamp: dict[str, Any]
) -> list[Recorded]:
    events = []
    for deployment_id in world.fleet.holders_of(node_id):
        deployment = world.get(DeploymentState, "deployment", deployment_id)
        if deployment is None or deployment_id in settled:
            continue
        held = deployment.residencies[node_id]
        event = ResidencyChanged(
            deployment_id=deployment_id, node_id=node_id, state="lost", generation=held.generation,
            work_id=held.work_id, cause=detail, **stamp,
        )  # fmt: skip
        events.append(Recorded(stream_of("deployment", deployment_id), event))
    return events


def _loaded(work: WorkState, world: World) -> WorkState:
    """The work's state by way of `world.get`, so that its stream takes part in the optimistic check."""
    return world.get(WorkState, "work", work.work_id) or work


def _credential_refused(node_id: str, credential: str, node: NodeState | None) -> Rejected | None:
    if node is None:
        return _unknown(node_id)
    given = hashlib.sha256(credential.encode()).hexdigest()
    if not hmac.compare_digest(given, node.credential_sha256):
        return Rejected(Code.CREDENTIAL_REFUSED, f"this is not the credential enrolled for node {node_id}")
    return None


def _unknown(node_id: str) -> Rejected:
    return Rejected(Code.UNKNOWN_STREAM, f"there is no node {node_id}")
