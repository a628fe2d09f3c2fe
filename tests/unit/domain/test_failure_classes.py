"""What went wrong, so that a person can act on it: each class of failure has its own code, in log, table and CLI."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from domain.folding.states import WorkState
from projections.project import work_row
from schemas import commands as c
from schemas import events as ev
from schemas import evidence as se
from schemas.codes import ADVICE, Code
from schemas.tokens import ATTEMPTS_MAX
from services.cli.screen.evidence import facts
from tests.unit.domain import statements as says
from tests.unit.domain.story import Story

# What a worker says of a load, and the codes under which it says it.
TOLD = {
    Code.OUT_OF_MEMORY: "the model process 4243 was ended by SIGKILL; the kernel counted 1 kills for memory meanwhile",
    Code.CHILD_DIED: "the model process 4243 was ended by SIGSEGV",
    Code.LOAD_TIMEOUT: "the time to load ran out in step `start`",
    Code.LOAD_FAILED: "ValueError: the weights have no such tensor",
    Code.HEALTH_FAILED: "the model loaded and is not sound: not finite",
    Code.ARTIFACT_DIGEST_MISMATCH: "`model.safetensors` has another digest than the manifest says",
    Code.ARTIFACT_FILE_MISSING: "`config.json` is not there",
    Code.ENVIRONMENT_CHANGED: "this node is another one than was assessed",
    Code.OFFLINE_NOT_PROVEN: "not refused: connect (connected); missing layers: landlock",
    Code.DEADLINE_EXCEEDED: "2 of 3 invocations are still in flight after 30000 ms",
}


def shown(work: WorkState) -> tuple[str | None, str]:
    """Code and message as a person sees them."""
    row = work_row(work, 1)
    seen = dict(facts(row))
    assert (seen["code"], seen.get("message", "")) == (row.code, row.message)
    return row.code, row.message


@pytest.mark.parametrize(("code", "message"), TOLD.items())
def test_what_the_worker_says_is_what_a_person_sees(story: Story, code: Code, message: str) -> None:
    deployment_id = story.deployment()
    work_id = story.finish(story.job(deployment_id, "load"), says.failed(code, message))
    assert shown(story.work(work_id)) == (code, message)
    failed = story.events(ev.WorkFailed)[-1]
    assert isinstance(failed, ev.WorkFailed)
    assert (failed.code, failed.message) == (code, message)
    moved = story.events(ev.ResidencyChanged)[-1]
    assert isinstance(moved, ev.ResidencyChanged)
    assert (moved.state, moved.code, moved.cause) == ("failed", code, f"{code}: {message}")
    assert ADVICE[code]


def expired(story: Story, work_id: str) -> None:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        order = story.claim(work_id)
        story.wait(order.lease_ms + 1)
        story.accept(c.ExpireLease, work_id=work_id, attempt=attempt)


def lost(story: Story, work_id: str) -> None:
    for _ in range(ATTEMPTS_MAX):
        story.claim(work_id)
        story.start_worker()


def late(story: Story, work_id: str) -> None:
    story.wait(story.world.limits.queue_ms + 1)
    story.accept(c.PassDeadline, work_id=work_id)


def disabled(story: Story, work_id: str) -> None:
    story.accept(c.DisableNode, node_id="n1", reason="for repair")


def cancelled(story: Story, work_id: str) -> None:
    story.accept(c.CancelWork, work_id=work_id)


@pytest.mark.parametrize(
    ("happens", "code", "message"),
    [
        (expired, Code.WORK_ATTEMPTS_EXHAUSTED, "attempt 3: LEASE_EXPIRED: not renewed, 1 ms over"),
        (lost, Code.WORK_ATTEMPTS_EXHAUSTED, "attempt 3: WORKER_LOST: generation 4 took over"),
        (late, Code.WORK_DEADLINE, "still queued after 600001 ms"),
        (disabled, Code.NODE_DISABLED, "for repair"),
        (cancelled, Code.WORK_CANCELLED, ""),
    ],
)
def test_what_the_control_plane_ends_says_why(
    story: Story, happens: Callable[[Story, str], None], code: Code, message: str
) -> None:
    work_id = story.probe()
    happens(story, work_id)
    assert shown(story.work(work_id)) == (code, message)


def test_a_lost_worker_ends_what_cannot_be_repeated_under_its_own_code(story: Story) -> None:
    deployment_id = story.resident()
    drain = story.job(deployment_id, "drain")
    story.claim(drain)
    story.accept(c.LoseSession, node_id="n1", generation="1", silent_ms=10_500)
    assert shown(story.work(drain)) == (Code.WORKER_LOST, "attempt 1: WORKER_LOST: the worker was silent for 10500 ms")
    assert story.residency(deployment_id) == "lost"


def test_a_lease_that_expired_ends_what_cannot_be_repeated_under_its_own_code(story: Story) -> None:
    unload = story.job(story.resident(), "unload")
    order = story.claim(unload)
    story.wait(order.lease_ms + 1)
    story.accept(c.ExpireLease, work_id=unload, attempt=1)
    assert story.work(unload).code is Code.LEASE_EXPIRED


def test_a_resident_that_died_says_by_what_in_the_residency(story: Story) -> None:
    deployment_id = story.resident()
    died = "the model process 4243 was ended by SIGKILL"
    lost_now = se.ResidentLost(deployment_id=deployment_id, code=Code.CHILD_DIED, message=died, exit_code=-9)
    story.say(list(story.orders)[-1], lost_now)
    moved = story.events(ev.ResidencyChanged)[-1]
    assert isinstance(moved, ev.ResidencyChanged)
    assert (moved.state, moved.code, moved.cause) == ("lost", Code.CHILD_DIED, f"CHILD_DIED: {died}")


@pytest.mark.parametrize(("exit_code", "how"), [(-9, "was ended by signal 9"), (3, "ended with exit code 3")])
def test_a_probe_whose_process_did_not_end_in_order_has_failed(story: Story, exit_code: int, how: str) -> None:
    work_id = story.finish(story.probe(), says.probed(story.fingerprint(), child_exit_code=exit_code))
    assert shown(story.work(work_id)) == (Code.CHILD_DIED, f"the probe's model process {how} on unloading")
    assert story.events(ev.CandidateCreated) == []
