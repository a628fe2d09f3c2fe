"""Who may still speak: the one rule that live decisions and replay share.

A statement about a work item counts only under the lease that is live in that item's own stream, from
the generation and attempt it was granted to, before the lease's end on the control plane's clock. A
statement about a residency counts only from a generation not older than any that this residency has
seen. Each function returns None where the speaker may speak, else the reason why not.
"""

from __future__ import annotations

from domain.folding.states import DeploymentState, NodeState, WorkState
from schemas.codes import Code


def fence_work(work: WorkState, generation: str, attempt: int, at_ms: int) -> Code | None:
    """Of a holder's statement: progress, completion, failure, renewal, release."""
    if work.stage in ("completed", "failed", "cancelled"):
        return Code.WORK_ENDED
    lease = work.lease
    if lease is None:
        return Code.LEASE_ENDED
    if generation != lease.generation:
        return Code.GENERATION_FENCED
    if attempt != lease.attempt:
        return Code.LEASE_ENDED
    if at_ms > lease.until_ms:
        return Code.LEASE_EXPIRED
    return None


def fence_grant(work: WorkState, generation: str, attempt: int) -> Code | None:
    """Of a grant: only for work that nobody holds, only the next attempt, never to an older generation."""
    if work.ended:
        return Code.WORK_ENDED
    if work.lease is not None:
        return Code.LEASE_HELD
    if attempt != work.attempt + 1:
        return Code.LEASE_ENDED
    if int(generation) < int(work.generation):
        return Code.GENERATION_FENCED
    return None


def fence_session(node: NodeState, generation: str) -> Code | None:
    """Of anything a worker says as the node's owner."""
    return None if generation == node.generation else Code.GENERATION_FENCED


# state -> the states that may follow it. `lost` may follow any state in which a worker holds something.
RESIDENCY_AFTER: dict[str, frozenset[str]] = {
    "absent": frozenset({"loading"}),
    "failed": frozenset({"loading", "unloading", "absent"}),
    "lost": frozenset({"loading", "absent"}),
    "loading": frozenset({"resident", "failed", "absent", "lost"}),
    "resident": frozenset({"draining", "unloading", "failed", "lost"}),
    "draining": frozenset({"draining", "unloading", "failed", "lost", "resident"}),
    "unloading": frozenset({"absent", "failed", "lost", "resident", "draining"}),
}
_OWNED = frozenset({"loading", "unloading"})  # a transition that only its own work item may end


def fence_residency(
    deployment: DeploymentState, node_id: str, state: str, generation: str, work_id: str
) -> Code | None:
    """Of a residency change: a legal step, by the owner of the running transition, from no older generation."""
    if deployment.retired or node_id not in deployment.node_ids:
        return Code.RESIDENCY_CONFLICT
    held = deployment.residencies.get(node_id)
    before = held.state if held else "absent"
    if state not in RESIDENCY_AFTER[before]:
        return Code.RESIDENCY_CONFLICT
    if held is None:
        return None
    if generation != "0" and int(generation) < held.generation_seen:
        return Code.GENERATION_FENCED
    if before in _OWNED and state != "lost" and work_id != held.work_id:
        return Code.EVIDENCE_MISPLACED
    if before == "draining" and state == "resident" and work_id != held.work_id:
        return Code.EVIDENCE_MISPLACED  # a drain that did not begin is taken back by itself
    if before == "unloading" and state in ("resident", "draining") and state != held.before:
        return Code.RESIDENCY_CONFLICT  # only an unload that did not begin goes back, and to where it came from
    return None


def fence_circuit(deployment: DeploymentState, node_id: str) -> Code | None:
    """Of a circuit that opens or closes: only of a deployment in use, for one of its nodes."""
    return Code.RESIDENCY_CONFLICT if deployment.retired or node_id not in deployment.node_ids else None
