"""The invariants that must hold after every command, whatever it was. Each is one function; `check` calls all."""

from __future__ import annotations

from typing import TypeVar

from domain.circuits import ENDS_MAX
from domain.folding.fleet import HOLDING, Fleet
from domain.folding.states import CandidateState, DeploymentState, State, WorkState
from schemas import events as ev
from tests.unit.domain.story import Story, folded

S = TypeVar("S", bound=State)


def check(story: Story) -> None:
    leases_belong_to_living_generations(story)
    nothing_is_open_or_held_on_disabled_nodes(story)
    residents_belong_to_living_generations(story)
    loading_and_unloading_have_their_work(story)
    candidates_come_from_completed_probes(story)
    deployments_were_approved_when_made(story)
    nothing_is_reserved_beyond_what_was_free(story)
    open_circuits_are_not_loaded(story)
    the_log_folds_to_the_world(story)
    the_index_follows_from_the_states(story)


def leases_belong_to_living_generations(story: Story) -> None:
    for work in _all(story, WorkState):
        if work.lease is None:
            continue
        node = story.node(work.node_id)
        assert not work.ended, work
        assert node.enabled, work
        assert node.session == "alive", work
        assert work.lease.generation == node.generation, work


def nothing_is_open_or_held_on_disabled_nodes(story: Story) -> None:
    for work in _all(story, WorkState):
        assert work.ended or story.node(work.node_id).enabled, work
    for deployment in _all(story, DeploymentState):
        for node_id in deployment.node_ids:
            assert story.node(node_id).enabled or deployment.residency(node_id) not in HOLDING, deployment


def residents_belong_to_living_generations(story: Story) -> None:
    for deployment in _all(story, DeploymentState):
        for node_id, held in deployment.residencies.items():
            node = story.node(node_id)
            if held.state in ("resident", "draining"):
                assert node.session == "alive", deployment
                assert held.generation == node.generation, deployment


def loading_and_unloading_have_their_work(story: Story) -> None:
    """A transition never waits for work that has ended."""
    for deployment in _all(story, DeploymentState):
        for held in deployment.residencies.values():
            if held.state in ("loading", "unloading"):
                assert not story.work(held.work_id).ended, deployment


def candidates_come_from_completed_probes(story: Story) -> None:
    for candidate in _all(story, CandidateState):
        probe = story.work(candidate.candidate_id)
        assert (probe.kind, probe.stage) == ("probe", "completed"), candidate


def deployments_were_approved_when_made(story: Story) -> None:
    approved: dict[str, str | None] = {}
    for event in story.events():
        if isinstance(event, ev.ApprovalGranted):
            approved[event.candidate_id] = event.candidate_digest
        elif isinstance(event, ev.ApprovalRevoked):
            approved[event.candidate_id] = None
        elif isinstance(event, ev.DeploymentCreated):
            assert approved.get(event.candidate_id) == event.candidate_digest, event


def nothing_is_reserved_beyond_what_was_free(story: Story) -> None:
    """At each admission, counted from the log by a rule of its own; and what is held now belongs to the living."""
    reserved: dict[str, dict[tuple[str, int], int]] = {}  # holder -> (node, device) -> bytes

    for event in story.events():
        if isinstance(event, ev.LeaseGranted):
            reserved.pop(event.work_id, None)
            r = event.reserved
            if r is None:
                continue
            place = (event.node_id, r.device_index)
            before = sum(held.get(place, 0) for held in reserved.values())
            external = r.used_bytes - r.own_bytes if r.own_bytes is not None else 0
            assert before + r.needed_bytes <= r.total_bytes - external - r.reserve_bytes, event
            assert r.needed_bytes <= r.total_bytes - r.used_bytes - r.reserve_bytes, event
            reserved[event.work_id] = {place: r.needed_bytes}
        elif isinstance(event, ev.LeaseEnded | ev.WorkCompleted | ev.WorkFailed | ev.WorkCancelled):
            reserved.pop(event.work_id, None)
        elif isinstance(event, ev.ResidencyChanged):
            holder = f"{event.deployment_id} on {event.node_id}"
            if event.state not in ("resident", "draining", "unloading"):
                reserved.pop(holder, None)
            elif event.reserved is not None:
                reserved[holder] = {(event.node_id, event.reserved.device_index): event.reserved.needed_bytes}
    now = {
        (node_id, held.reservation.device_index, held.reservation.needed_bytes)
        for node_id, by_stream in story.world.fleet.reserved_on.items()
        for held in by_stream.values()
    }
    assert now == {(*place, size) for held in reserved.values() for place, size in held.items()}
    for node_id, *_ in now:
        assert story.node(node_id).enabled, node_id
        assert story.node(node_id).session == "alive", node_id


def open_circuits_are_not_loaded(story: Story) -> None:
    until: dict[tuple[str, str], int] = {}
    for event in story.events():
        if isinstance(event, ev.CircuitOpened):
            until[event.deployment_id, event.node_id] = event.until_ms
        elif isinstance(event, ev.CircuitClosed):
            del until[event.deployment_id, event.node_id]
        elif isinstance(event, ev.ResidencyChanged) and event.state == "loading":
            assert event.at_ms >= until.get((event.deployment_id, event.node_id), 0), event
    for deployment in _all(story, DeploymentState):
        assert all(len(circuit.ends) <= ENDS_MAX for circuit in deployment.circuits.values()), deployment


def the_log_folds_to_the_world(story: Story) -> None:
    assert folded(story.lines) == {stream: state for stream, state in story.world.states.items() if state is not None}


def the_index_follows_from_the_states(story: Story) -> None:
    assert facts(story.world.fleet) == facts(rebuilt(story))


def rebuilt(story: Story) -> Fleet:
    fleet = Fleet()
    for state in story.world.states.values():
        fleet.note(None, state)
    return fleet


def facts(fleet: Fleet) -> tuple[object, ...]:
    """The index without the empty sets that its history leaves."""
    return (
        fleet.nodes, fleet.open_work, {node: ids for node, ids in fleet.work_on.items() if ids},
        {node: ids for node, ids in fleet.held_on.items() if ids}, fleet.deployment_named,
        {node: held for node, held in fleet.reserved_on.items() if held},
    )  # fmt: skip


def _all(story: Story, kind: type[S]) -> list[S]:
    return [state for state in story.world.states.values() if isinstance(state, kind)]
