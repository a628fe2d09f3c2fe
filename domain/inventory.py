"""Inventories: what a worker says it holds, against what the log says.

They are the same while nothing goes wrong, also over a restart of the control plane: what matches exactly is
simply still there, and nothing is loaded twice. Where they differ and no work is under way that would
explain it, the worker's word about itself counts: what it does not hold is lost, what it says drains or serves does
(after a drain whose order it never heard, say), and what it holds without the log's knowledge it should end.
"""

from __future__ import annotations

from collections.abc import Sequence

from domain.deciding.outcomes import Accepted, Outcome, Recorded, Rejected
from domain.deciding.world import World
from domain.folding.fleet import Fleet
from domain.folding.states import DeploymentState, NodeState, stream_of
from schemas.codes import Code
from schemas.commands import ReconcileInventory
from schemas.events import ResidencyChanged
from schemas.live import InventoryEntry, inventory_digest

AT_REST = frozenset({"resident", "draining"})  # states between work items, in which log and worker must agree


def expected(node: NodeState, fleet: Fleet) -> list[InventoryEntry]:
    """What the log says the node's current generation holds, by deployment."""
    entries = []
    for deployment_id in fleet.holders_of(node.node_id):
        deployment = fleet.holding.get(deployment_id)
        held = deployment.residencies.get(node.node_id) if deployment is not None else None
        if deployment is None or held is None or held.state not in AT_REST or held.generation != node.generation:
            continue
        entries.append(
            InventoryEntry(
                deployment_id, deployment.artifact_id, deployment.profile_id, deployment.fingerprint,
                held.generation, held.state,  # type: ignore[arg-type]
            )
        )  # fmt: skip
    return entries


def agrees(node: NodeState, fleet: Fleet, digest: str) -> bool:
    """Whether a heartbeat's inventory digest is that of what the log says."""
    return inventory_digest(expected(node, fleet)) == digest


def busy(node_id: str, fleet: Fleet) -> frozenset[str]:
    """Deployments with open work on the node: a difference there will be settled by that work."""
    return frozenset(work.deployment_id for work in fleet.work_of(node_id) if work.deployment_id is not None)


def known(node: NodeState, fleet: Fleet) -> frozenset[str]:
    """Deployments that the node's generation holds by the log, or has work of."""
    return busy(node.node_id, fleet) | {entry.deployment_id for entry in expected(node, fleet)}


def unwanted(node: NodeState, fleet: Fleet, inventory: Sequence[InventoryEntry]) -> list[str]:
    """Deployments of `inventory` that the log does not call held by this generation."""
    return sorted({entry.deployment_id for entry in inventory} - known(node, fleet))


def reconcile(command: ReconcileInventory, world: World) -> Outcome:
    node = world.get(NodeState, "node", command.node_id)
    if node is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no node {command.node_id}")
    if node.session != "alive" or node.generation != command.generation:
        return Accepted()
    said = {_identity(entry): entry.state for entry in command.inventory}
    under_way = busy(node.node_id, world.fleet)
    events = []
    for entry in expected(node, world.fleet):
        state = said.get(_identity(entry))
        if entry.deployment_id in under_way or state == entry.state or state in ("loading", "unloading"):
            continue
        deployment = world.get(DeploymentState, "deployment", entry.deployment_id)
        if deployment is None:
            continue
        held = deployment.residencies[node.node_id]
        event = ResidencyChanged(
            deployment_id=entry.deployment_id, node_id=node.node_id, state=state or "lost",
            generation=held.generation, work_id=held.work_id,
            cause="the worker does not hold it" if state is None else "the worker says so", **world.stamp(command),
        )  # fmt: skip
        events.append(Recorded(stream_of("deployment", entry.deployment_id), event))
    return Accepted(events)


def _identity(entry: InventoryEntry) -> tuple[str, ...]:
    """An exact match of everything but the state is what counts."""
    return (entry.deployment_id, entry.artifact_id, entry.profile_id, entry.fingerprint, entry.generation)
