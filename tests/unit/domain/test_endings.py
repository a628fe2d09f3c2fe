"""Work that ends otherwise than by its result: cancelled, or out of time."""

from __future__ import annotations

import pytest

from schemas import commands as c
from schemas import events as ev
from schemas import evidence as se
from schemas.codes import Code
from schemas.tokens import ATTEMPTS_MAX
from tests.unit.domain import statements as says
from tests.unit.domain.story import Story


def cancel(story: Story, work_id: str) -> None:
    story.accept(c.CancelWork, work_id=work_id, reason="not needed")


def test_queued_work_is_cancelled_at_once(story: Story) -> None:
    work_id = story.probe()
    cancel(story, work_id)
    assert (story.work(work_id).stage, story.work(work_id).code) == ("cancelled", Code.WORK_CANCELLED)
    assert story.refuse(c.CancelWork, work_id=work_id).code is Code.WORK_ENDED
    assert story.refuse(c.CancelWork, work_id="nothing").code is Code.UNKNOWN_STREAM


def test_a_holder_is_asked_to_stop_and_says_when_it_has(story: Story) -> None:
    work_id = story.probe()
    story.claim(work_id)
    cancel(story, work_id)
    before = len(story.lines)
    cancel(story, work_id)
    assert len(story.lines) == before
    assert (story.work(work_id).stage, story.work(work_id).cancel_requested) == ("preparing", True)
    story.say(work_id, se.WorkCancelled(stage="loading"))
    assert story.work(work_id).stage == "cancelled"


def test_a_result_that_was_faster_than_the_cancellation_counts(story: Story) -> None:
    work_id = story.probe()
    story.claim(work_id)
    cancel(story, work_id)
    story.say(work_id, says.probed(story.fingerprint()))
    assert story.work(work_id).stage == "completed"


def test_cancelled_work_whose_holder_vanished_is_not_offered_again(story: Story) -> None:
    work_id = story.probe()
    story.claim(work_id)
    cancel(story, work_id)
    story.start_worker()
    assert story.work(work_id).stage == "cancelled"


@pytest.mark.parametrize("leased", [False, True])
def test_a_cancelled_load_leaves_nothing(story: Story, leased: bool) -> None:
    deployment_id = story.deployment()
    work_id = story.job(deployment_id, "load")
    if leased:
        story.claim(work_id)
        cancel(story, work_id)
        story.say(work_id, se.WorkCancelled(stage="loading"))
    else:
        cancel(story, work_id)
    assert story.residency(deployment_id) == "absent"
    story.load(deployment_id)


def test_work_nobody_claimed_fails_when_the_queue_limit_has_passed(story: Story) -> None:
    work_id = story.probe()
    story.wait(story.world.limits.queue_ms)
    before = len(story.lines)
    story.accept(c.PassDeadline, work_id=work_id)
    story.accept(c.PassDeadline, work_id="nothing")
    assert len(story.lines) == before
    story.wait(1)
    story.accept(c.PassDeadline, work_id=work_id)
    assert (story.work(work_id).stage, story.work(work_id).code) == ("failed", Code.WORK_DEADLINE)


def test_each_time_in_the_queue_has_its_own_limit(story: Story) -> None:
    """A lease that ended late leaves time for another claim; attempts stay bounded."""
    work_id = story.probe()
    story.wait(story.world.limits.queue_ms)
    for attempt in range(1, ATTEMPTS_MAX):
        order = story.claim(work_id)
        story.wait(order.lease_ms + 1)
        story.accept(c.ExpireLease, work_id=work_id, attempt=attempt)
        assert story.work(work_id).deadline_ms == story.world.now_ms + story.world.limits.queue_ms
        story.wait(story.world.limits.queue_ms)
        story.accept(c.PassDeadline, work_id=work_id)
        assert story.work(work_id).stage == "queued"
    story.wait(1)
    story.accept(c.PassDeadline, work_id=work_id)
    assert story.work(work_id).code is Code.WORK_DEADLINE


@pytest.mark.parametrize("before", ["resident", "draining", "failed"])
def test_an_unload_cancelled_before_it_began_leaves_things_as_they_were(story: Story, before: str) -> None:
    deployment_id = story.resident()
    if before == "draining":
        story.finish(story.job(deployment_id, "drain"), says.drained())
    if before == "failed":
        story.finish(story.job(deployment_id, "unload"), says.failed())
    unload = story.job(deployment_id, "unload")
    assert story.residency(deployment_id) == "unloading"
    cancel(story, unload)
    assert story.residency(deployment_id) == before
    story.finish(story.job(deployment_id, "unload"), says.unloaded())
    assert story.residency(deployment_id) == "absent"


@pytest.mark.parametrize("before", ["resident", "draining", "failed"])
def test_an_unload_that_nobody_began_in_time_has_failed_and_leaves_things_as_they_were(
    story: Story, before: str
) -> None:
    """The worker was never told; what it holds serves as it did, and can be unloaded, or die, as before."""
    deployment_id = story.resident()
    load_id = list(story.orders)[-1]
    if before == "draining":
        story.finish(story.job(deployment_id, "drain"), says.drained())
    if before == "failed":
        story.finish(story.job(deployment_id, "unload"), says.failed())
    unload = story.job(deployment_id, "unload")
    story.wait(story.world.limits.queue_ms + 1)
    story.accept(c.PassDeadline, work_id=unload)
    assert (story.work(unload).stage, story.work(unload).code) == ("failed", Code.WORK_DEADLINE)
    assert story.residency(deployment_id) == before
    moved = story.events(ev.ResidencyChanged)[-1]
    assert isinstance(moved, ev.ResidencyChanged)
    assert (moved.work_id, moved.code, moved.cause) == (unload, None, "unload not begun in time")
    if before == "resident":
        lost_now = se.ResidentLost(deployment_id=deployment_id, code=Code.CHILD_DIED, message="signal 9")
        story.say(load_id, lost_now)
        assert story.residency(deployment_id) == "lost"
    else:
        story.finish(story.job(deployment_id, "unload"), says.unloaded())
        assert story.residency(deployment_id) == "absent"


def test_an_unload_that_was_begun_and_took_too_long_leaves_it_failed(story: Story) -> None:
    """Nobody knows how far it came."""
    deployment_id = story.resident()
    unload = story.job(deployment_id, "unload")
    order = story.claim(unload)
    while story.world.now_ms + 20_000 <= order.deadline_ms:
        story.wait(20_000)
        story.accept(c.RenewLease, work_id=unload, generation="1", attempt=1, token=story.orders[unload].token)
    story.wait(20_000)
    story.accept(c.PassDeadline, work_id=unload)
    assert story.work(unload).code is Code.WORK_DEADLINE
    assert story.residency(deployment_id) == "failed"


def test_an_unload_cancelled_while_it_runs_has_failed(story: Story) -> None:
    """Nobody knows how far it came; it is to be unloaded again."""
    deployment_id = story.resident()
    unload = story.job(deployment_id, "unload")
    story.claim(unload)
    cancel(story, unload)
    story.say(unload, se.WorkCancelled("unloading"))
    assert story.residency(deployment_id) == "failed"


def test_a_resident_that_was_not_unloaded_after_all_serves_and_can_die(story: Story) -> None:
    deployment_id = story.resident()
    load_id = list(story.orders)[-1]
    cancel(story, story.job(deployment_id, "unload"))
    story.finish(story.job(deployment_id, "health"), se.HealthChecked(says.health(), 1))
    story.say(load_id, se.ResidentLost(deployment_id=deployment_id, code=Code.CHILD_DIED, message="signal 9"))
    assert story.residency(deployment_id) == "lost"


def test_leased_work_has_its_profiles_time_and_not_more(story: Story) -> None:
    deployment_id = story.deployment()
    work_id = story.job(deployment_id, "load")
    order = story.claim(work_id)
    limits = order.profile.limits
    assert order.deadline_ms == story.world.now_ms + limits.load_ms + limits.health_ms + 30_000
    while story.world.now_ms + 20_000 <= order.deadline_ms:
        story.wait(20_000)
        story.accept(
            c.RenewLease, work_id=work_id, generation=order.generation, attempt=order.attempt, token=order.token
        )
    story.wait(order.deadline_ms - story.world.now_ms + 1)
    story.accept(c.PassDeadline, work_id=work_id)
    assert (story.work(work_id).stage, story.work(work_id).lease) == ("failed", None)
    assert story.residency(deployment_id) == "failed"
    assert story.say(work_id, says.loaded(story.fingerprint())).result["reason"] == "WORK_ENDED"
    assert story.residency(deployment_id) == "failed"
