"""A deployment on one of its nodes: what every command about that pair asks for first."""

from __future__ import annotations

from domain.deciding.outcomes import Rejected
from domain.deciding.world import World
from domain.folding.states import DeploymentState
from schemas.codes import Code


def bound(deployment_id: str, node_id: str, world: World) -> DeploymentState | Rejected:
    """The deployment, if it is in use and bound to the node."""
    deployment = world.get(DeploymentState, "deployment", deployment_id)
    if deployment is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no deployment {deployment_id}")
    if deployment.retired:
        return Rejected(Code.RESIDENCY_CONFLICT, f"deployment {deployment.name} is retired")
    if node_id not in deployment.node_ids:
        return Rejected(Code.RESIDENCY_CONFLICT, f"deployment {deployment.name} is not bound to node {node_id}")
    return deployment
