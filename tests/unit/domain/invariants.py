"""The invariants that must hold after every command, whatever it was. Each is one function; `check` calls all."""

from __future__ import annotations

from typing import TypeVar

from domain.fleet import HOLDING, Fleet
from domain.states import CandidateState, DeploymentState, State, WorkState
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
    )  # fmt: skip


def _all(story: Story, kind: type[S]) -> list[S]:
    return [state for state in story.world.states.values() if isinstance(state, kind)]
