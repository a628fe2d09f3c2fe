"""Fleet: the few facts that cross streams, kept in step with the folded states.

Which work is open on a node, which deployments hold something there, what device memory is reserved, which
names are taken. It is an index, derived only from (state before, state after) of one stream at a time, so that
it can follow a fold forwards and be put right again when a commit did not land.
"""

from __future__ import annotations

from typing import NamedTuple

from domain.folding.states import DeploymentState, NodeState, State, WorkState
from schemas.devices import Reservation

HOLDING = frozenset({"loading", "resident", "draining", "unloading"})


class Held(NamedTuple):
    """A reservation that counts. `pending` while its work is under way, not once a resident has it."""

    reservation: Reservation
    pending: bool


class Fleet:
    """Mutable; owned by one folding loop."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeState] = {}
        self.alive: dict[str, NodeState] = {}  # the nodes whose session is alive
        self.open_work: dict[str, WorkState] = {}
        self.work_on: dict[str, set[str]] = {}
        self.held_on: dict[str, set[str]] = {}  # node -> deployments with a residency in HOLDING
        self.holding: dict[str, DeploymentState] = {}  # deployments that hold something somewhere
        self.deployment_named: dict[str, str] = {}
        self.reserved_on: dict[str, dict[str, Held]] = {}  # node -> stream -> what it has reserved there

    def note(self, before: State | None, after: State | None) -> None:
        """Take in that a stream's state went from `before` to `after` (either may be None)."""
        some = after if after is not None else before
        if isinstance(some, WorkState):
            self._note_work(some.work_id, some.node_id, after if isinstance(after, WorkState) else None)
        elif isinstance(some, NodeState):
            self._note_node(some.node_id, after if isinstance(after, NodeState) else None)
        elif isinstance(some, DeploymentState):
            self._note_deployment(
                before if isinstance(before, DeploymentState) else None,
                after if isinstance(after, DeploymentState) else None,
            )

    def work_of(self, node_id: str) -> list[WorkState]:
        """Open work of a node, oldest first."""
        found = [self.open_work[work_id] for work_id in self.work_on.get(node_id, ())]
        return sorted(found, key=lambda work: (work.requested_at_ms, work.work_id))

    def holders_of(self, node_id: str) -> list[str]:
        """Deployments that hold something on the node, by id."""
        return sorted(self.held_on.get(node_id, ()))

    def open_job(self, deployment_id: str, node_id: str, verb: str) -> WorkState | None:
        for work in self.work_of(node_id):
            if work.deployment_id == deployment_id and work.kind == verb:
                return work
        return None

    def _note_node(self, node_id: str, after: NodeState | None) -> None:
        if after is None:
            self.nodes.pop(node_id, None)
        else:
            self.nodes[node_id] = after
        if after is not None and after.session == "alive":
            self.alive[node_id] = after
        else:
            self.alive.pop(node_id, None)

    def _note_work(self, work_id: str, node_id: str, after: WorkState | None) -> None:
        if after is None or after.ended:
            self.open_work.pop(work_id, None)
            self.work_on.get(node_id, set()).discard(work_id)
        else:
            self.open_work[work_id] = after
            self.work_on.setdefault(node_id, set()).add(work_id)
        held = after.reserved if after is not None and after.lease is not None else None
        self._note_reserved(node_id, f"work-{work_id}", Held(held, True) if held is not None else None)

    def _note_reserved(self, node_id: str, stream: str, held: Held | None) -> None:
        if held is not None:
            self.reserved_on.setdefault(node_id, {})[stream] = held
        elif node_id in self.reserved_on:
            self.reserved_on[node_id].pop(stream, None)

    def _note_deployment(self, before: DeploymentState | None, after: DeploymentState | None) -> None:
        over = before if before is not None and (after is None or after.retired) else None
        if over is not None and self.deployment_named.get(over.name) == over.deployment_id:
            del self.deployment_named[over.name]  # where it is another's by now, it stays
        if after is not None and not after.retired:
            self.deployment_named[after.name] = after.deployment_id
        some = after or before
        if some is None:
            return
        if after is not None and any(held.state in HOLDING for held in after.residencies.values()):
            self.holding[after.deployment_id] = after
        else:
            self.holding.pop(some.deployment_id, None)
        nodes = set(before.residencies if before else ()) | set(after.residencies if after else ())
        for node_id in nodes:
            holds = after is not None and after.residency(node_id) in HOLDING
            members = self.held_on.setdefault(node_id, set())
            if holds:
                members.add(some.deployment_id)
            else:
                members.discard(some.deployment_id)
            reserved = after.residencies[node_id].reserved if after and node_id in after.residencies else None
            held = Held(reserved, False) if reserved is not None else None
            self._note_reserved(node_id, f"deployment-{some.deployment_id}", held)
