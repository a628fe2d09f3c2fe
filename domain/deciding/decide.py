"""`decide(command, world)`: one entry for every command, whoever sent it and however it came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from domain import artifacts, circuits, claims, evidence, gates, inventory, jobs, leases, nodes
from domain.deciding.outcomes import Outcome
from domain.deciding.world import World
from schemas import commands as c

_HANDLERS: dict[type[c.Command], Callable[[Any, World], Outcome]] = {
    c.RegisterArtifact: artifacts.register,
    c.VerifyArtifact: gates.request_verify,
    c.RequestAssessment: gates.request_assessment,
    c.CreateProfile: gates.create_profile,
    c.RequestProbe: gates.request_probe,
    c.CancelWork: leases.cancel,
    c.GrantApproval: gates.grant_approval,
    c.RevokeApproval: gates.revoke_approval,
    c.CreateDeployment: gates.create_deployment,
    c.RetireDeployment: gates.retire_deployment,
    c.RequestJob: jobs.request,
    c.CloseCircuit: circuits.close,
    c.EnrolNode: nodes.enrol,
    c.DisableNode: nodes.disable,
    c.EnableNode: nodes.enable,
    c.RegisterWorker: nodes.register,
    c.LeaveWorker: nodes.leave,
    c.ClaimLease: claims.claim,
    c.RenewLease: leases.renew,
    c.ReleaseLease: leases.release,
    c.SubmitEvidence: evidence.submit,
    c.ExpireLease: leases.expire,
    c.PassDeadline: leases.pass_deadline,
    c.LoseSession: nodes.lose_session,
    c.ReconcileInventory: inventory.reconcile,
}


def decide(command: c.Command, world: World) -> Outcome:
    """Events to append or a coded refusal. No effects; may raise NotLoaded to ask for a stream."""
    return _HANDLERS[type(command)](command, world)
