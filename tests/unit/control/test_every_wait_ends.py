"""Whatever something is only passing through has an owner and an end: time alone brings it about.

Each kind of work is brought to each of its stages and left there, with a worker that has gone, one that lives and does
nothing, and one that claims whatever it is offered and renews for ever without a result. Then only the clock moves.
Within the bound of that wait nothing is open any more, and no residency is on its way from one state to another.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import pytest

from domain.folding.states import DeploymentState, ProfileState
from domain.leases import REPEATABLE, run_limit_ms
from schemas import commands as c
from schemas.events import ResidencyState
from schemas.evidence import Progress
from schemas.tokens import ATTEMPTS_MAX
from schemas.work import FINAL_STAGES, Stage, WorkKind
from tests.unit.control.test_sessions import LEASE_MS, SESSION_MS, Desk
from tests.unit.domain.story import ADAPTER, TASK, Story

TICK_MS = 5_000
SLACK_MS = 2 * TICK_MS  # a bound is noticed at the tick after it
PASSING = ("loading", "unloading")

# kind -> the stages it passes through once it is claimed
STAGES = {
    "verify": ("preparing",),
    "assess": ("preparing",),
    "probe": ("preparing", "loading", "healthchecking", "ready", "unloading"),
    "load": ("preparing", "loading", "healthchecking", "ready"),
    "health": ("preparing",),
    "drain": ("preparing",),
    "unload": ("preparing", "unloading"),
}
WORKERS = ("gone", "idle", "endless")


class Case(NamedTuple):
    kind: str
    stage: str
    worker: str


CASES = [
    Case(kind, stage, worker) for kind, stages in STAGES.items() for stage in ("queued", *stages) for worker in WORKERS
]


def requested(story: Story, kind: str) -> str:
    """Work of this kind, queued, with all that it rests on."""
    if kind == "verify":
        place = {"artifact_id": story.register_artifact(), "node_id": "n1", "location": "models/mini"}
        return story.work_for(c.VerifyArtifact, **place)
    if kind == "assess":
        artifact_id = story.verified_artifact()
        return story.work_for(c.RequestAssessment, artifact_id=artifact_id, node_id="n1", adapter=ADAPTER, task=TASK)
    if kind == "probe":
        return story.probe()
    deployment_id = story.deployment()
    if kind != "load":
        story.load(deployment_id)
    return story.job(deployment_id, kind)


def at_stage(story: Story, case: Case) -> str:
    work_id = requested(story, case.kind)
    if case.stage == "queued":
        return work_id
    story.claim(work_id)
    stages = STAGES[case.kind]
    for stage in stages[1 : stages.index(case.stage) + 1]:  # the claim itself begins the first
        story.say(work_id, Progress(stage))  # type: ignore[arg-type]
    return work_id


def live_on(desk: Desk, worker: str) -> None:
    """What this worker does within one tick."""
    if worker == "gone" or desk.story.node().session != "alive":
        return
    reply = desk.beat()
    if worker != "endless":
        return
    for offer in reply.offers:
        desk.story.claim(offer.work_id)
    for work in desk.story.world.fleet.work_of("n1"):
        order = desk.story.orders[work.work_id]
        if work.lease is not None and desk.clock.at_ms >= work.lease.since_ms + LEASE_MS // 2:
            fields = {"generation": order.generation, "attempt": order.attempt, "token": order.token}
            desk.story.accept(c.RenewLease, work_id=work.work_id, **fields)


def bound_ms(story: Story, case: Case, work_id: str) -> int:
    """The longest that this wait may last, by what is promised of it."""
    work, queue_ms = story.work(work_id), story.world.limits.queue_ms
    profiles = [state for state in story.world.states.values() if isinstance(state, ProfileState)]
    run_ms = run_limit_ms(work.kind, profiles[0].profile if profiles else None)
    held_ms = {"gone": SESSION_MS, "idle": LEASE_MS, "endless": run_ms}[case.worker]
    if case.worker == "gone" and case.kind not in REPEATABLE:
        return SESSION_MS  # what it was about is gone with the worker
    if case.stage == "queued":
        return queue_ms if case.worker != "endless" else run_ms + TICK_MS
    again_ms = queue_ms if case.kind in REPEATABLE and case.worker != "endless" else 0
    return held_ms + again_ms


def passing(story: Story) -> list[str]:
    deployments = [state for state in story.world.states.values() if isinstance(state, DeploymentState)]
    found = [deployment.residency("n1") for deployment in deployments]
    return [state for state in found if state in PASSING]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_it_ends_by_time_alone(case: Case) -> None:
    desk = Desk()
    desk.story.enrol()
    desk.story.start_worker()
    desk.clock.at_ms = desk.story.world.now_ms
    work_id = at_stage(desk.story, case)
    assert desk.story.work(work_id).stage == case.stage
    begun_ms, limit_ms = desk.clock.at_ms, bound_ms(desk.story, case, work_id)
    desk.beat()
    while not desk.story.work(work_id).ended:
        assert desk.clock.at_ms - begun_ms <= limit_ms + SLACK_MS, desk.story.work(work_id)
        desk.wait(TICK_MS)
        live_on(desk, case.worker)
        desk.carry_out()  # checks every invariant, among them that a transition has work that is open
    work = desk.story.work(work_id)
    assert work.stage == "failed"
    assert work.code is not None
    assert work.attempt <= ATTEMPTS_MAX
    assert passing(desk.story) == []
    assert desk.story.world.fleet.open_work == {}


def test_a_claimed_transition_that_nobody_takes_again_uses_up_its_attempts() -> None:
    """A worker that claims, never renews and claims again: three leases, and then an end."""
    desk = Desk()
    desk.story.enrol()
    desk.story.start_worker()
    desk.clock.at_ms = desk.story.world.now_ms
    work_id = requested(desk.story, "load")
    begun_ms = desk.clock.at_ms
    while not desk.story.work(work_id).ended:
        for offer in desk.beat().offers:
            desk.story.claim(offer.work_id)
        desk.wait(TICK_MS)
        desk.carry_out()
        assert desk.clock.at_ms - begun_ms <= ATTEMPTS_MAX * (LEASE_MS + SLACK_MS)
    assert passing(desk.story) == []


def test_what_is_known_as_passing_is_all_there_is() -> None:
    """A kind or stage that is added has to be added here."""
    assert set(STAGES) == set(get_args(WorkKind))
    assert {stage for stages in STAGES.values() for stage in stages} | {"queued", *FINAL_STAGES} == set(get_args(Stage))
    resting = {"absent", "resident", "draining", "lost", "failed"}
    assert set(get_args(ResidencyState)) == resting | set(PASSING)
