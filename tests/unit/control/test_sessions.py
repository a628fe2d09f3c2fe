"""Sessions: who is renewed, what a beat tells, and which commands the clock makes necessary."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from domain.deciding.outcomes import Accepted
from schemas import commands as c
from schemas.commands import Command
from schemas.live import Beat, BeatReply, InventoryEntry, LiveAnswer, Resident
from schemas.work import Offer
from services.clock import RandomIds
from services.control.sessions import DIFFERS_BEATS, OFFERS_PER_BEAT_MAX, Sessions
from tests.unit.control.faulty import SetClock
from tests.unit.domain import statements as says
from tests.unit.domain.invariants import check
from tests.unit.domain.story import Story

SESSION_MS, LEASE_MS = 10_000, 30_000


class Desk:
    """A story and the sessions over its fleet, with one clock."""

    def __init__(self) -> None:
        self.story = Story()
        self.clock = SetClock()
        self.sessions = Sessions(self.story.world.fleet, self.story.world.limits, self.clock, RandomIds())

    def wait(self, ms: int) -> None:
        self.clock.at_ms += ms
        self.story.world.now_ms = self.clock.at_ms

    def beat(self, generation: str = "1", node_id: str = "n1", confirmed: tuple[str, ...] = ()) -> BeatReply:
        reply = self.sessions.beat(Beat(node_id, generation, "boot", "a" * 64, []), list(confirmed))
        assert reply is not None
        return reply

    def carry_out(self) -> list[type[Command]]:
        """Let everything that is due be decided; the kinds of commands there were."""
        commands = self.sessions.due()
        for command in commands:
            assert isinstance(self.story.decide(command), Accepted)
        check(self.story)
        return [type(command) for command in commands]


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    made.story.enrol()
    made.story.start_worker()
    return made


def test_a_session_lives_by_its_beats(desk: Desk) -> None:
    assert desk.carry_out() == []
    for _ in range(5):
        desk.wait(SESSION_MS)
        assert desk.carry_out() == []
        assert not desk.beat().fenced
    desk.wait(SESSION_MS)
    assert desk.carry_out() == []
    desk.wait(1)
    assert desk.carry_out() == [c.LoseSession]
    assert desk.story.node().session == "lost"
    assert desk.carry_out() == []
    assert desk.beat().fenced


def test_a_loss_tells_how_long_it_was_silent(desk: Desk) -> None:
    desk.beat()
    desk.wait(SESSION_MS + 5)
    (lose,) = desk.sessions.due()
    assert isinstance(lose, c.LoseSession)
    assert (lose.node_id, lose.generation, lose.silent_ms, lose.actor) == ("n1", "1", SESSION_MS + 5, "control")


def test_after_a_start_every_session_has_a_full_term(desk: Desk) -> None:
    desk.wait(1_000_000)
    assert desk.sessions.due() == []
    desk.wait(SESSION_MS)
    assert desk.sessions.due() == []
    desk.wait(1)
    assert [type(command) for command in desk.sessions.due()] == [c.LoseSession]


def test_a_new_generation_has_a_term_of_its_own(desk: Desk) -> None:
    desk.beat()
    desk.wait(SESSION_MS)
    desk.story.start_worker()
    desk.wait(5)
    assert desk.sessions.due() == []
    assert desk.beat("1").fenced
    assert not desk.beat("2").fenced


def test_a_registration_that_did_not_land_leaves_no_term_to_its_successor(desk: Desk) -> None:
    """Found by a simulated story: the same generation number, decided again after a failed commit."""
    desk.story.start_worker()
    desk.sessions.due()  # generation 2 has a term from here
    node = desk.story.world.fleet.nodes["n1"]
    desk.wait(SESSION_MS + 1)
    again = replace(node, changed_at_ms=node.changed_at_ms + SESSION_MS)
    desk.story.world.fleet.note(node, again)
    assert desk.sessions.due() == []


def test_beats_of_others_are_fenced_and_renew_nothing(desk: Desk) -> None:
    assert desk.beat(node_id="ghost").fenced
    assert desk.beat("2").fenced
    assert desk.beat("0").fenced
    desk.story.accept(c.DisableNode, node_id="n1")
    reply = desk.beat(confirmed=("e1",))
    assert (reply.fenced, reply.confirmed, reply.offers, reply.cancelled) == (True, ["e1"], [], [])


def test_a_beat_repeats_open_work_and_cancellations(desk: Desk) -> None:
    artifact_id = desk.story.register_artifact()
    place = {"artifact_id": artifact_id, "node_id": "n1", "location": "models/mini"}
    first, second = (desk.story.work_for(c.VerifyArtifact, **place) for _ in range(2))
    reply = desk.beat()
    assert reply.offers == [Offer(first, "n1", "verify", 1), Offer(second, "n1", "verify", 1)]
    assert (reply.session_ms, reply.beat_ms, reply.cancelled) == (SESSION_MS, 1_000, [])
    desk.story.claim(first)
    desk.story.accept(c.CancelWork, work_id=first)
    reply = desk.beat()
    assert ([offer.work_id for offer in reply.offers], reply.cancelled) == ([second], [first])
    desk.story.finish(second, says.verified())
    for _ in range(OFFERS_PER_BEAT_MAX + 1):
        desk.story.work_for(c.VerifyArtifact, **place)
    assert len(desk.beat().offers) == OFFERS_PER_BEAT_MAX


def test_no_lease_outlives_its_end_once_what_is_due_was_done(desk: Desk) -> None:
    deployment_id = desk.story.deployment()
    work_id = desk.story.job(deployment_id, "load")
    for attempt in (1, 2, 3):
        assert desk.story.claim(work_id).attempt == attempt
        for _ in range(3):
            desk.wait(LEASE_MS // 3)
            desk.beat()
        assert desk.carry_out() == []
        desk.wait(1)
        assert desk.carry_out() == [c.ExpireLease]
    assert desk.story.work(work_id).stage == "failed"
    assert desk.carry_out() == []


def test_work_nobody_claims_is_given_up(desk: Desk) -> None:
    work_id = desk.story.job(desk.story.deployment(), "load")
    for _ in range(61):
        desk.wait(SESSION_MS)
        desk.beat()
    assert desk.carry_out() == [c.PassDeadline]
    assert desk.story.work(work_id).stage == "failed"


def test_a_beat_tells_what_admission_leaves_free(desk: Desk) -> None:
    assert desk.beat().device_reserve_bytes == desk.story.world.limits.device_reserve_bytes > 0
    assert desk.beat("2").device_reserve_bytes is None  # fenced: it has nothing to admit


def test_a_difference_that_lasts_is_looked_into_and_the_worker_told(desk: Desk) -> None:
    answer = LiveAnswer("n1", "1", "boot", True, [])
    desk.beat()  # its digest is not that of an empty inventory
    assert desk.sessions.differing() == []
    desk.wait(DIFFERS_BEATS * desk.story.world.limits.beat_ms + 1)
    assert [node.node_id for node in desk.sessions.differing()] == ["n1"]
    assert desk.sessions.compare(LiveAnswer("n1", "7", "boot", True, [])) is None
    assert desk.sessions.compare(LiveAnswer("n1", "1", "boot", False, [])) is None
    entry = InventoryEntry("d" * 32, "a" * 64, "b" * 64, "c" * 64, "1", "resident")
    holding = LiveAnswer("n1", "1", "boot", True, [Resident(entry, 0, 1, 0, 0, None)])
    command = desk.sessions.compare(holding)
    assert isinstance(command, c.ReconcileInventory)
    assert command.inventory == [entry]
    assert desk.beat().unwanted == ["d" * 32]
    assert desk.beat().unwanted == []  # told once; asked again if it lasts
    assert desk.sessions.compare(answer) is not None


def test_what_somebody_asked_for_since_is_not_unwanted_any_more(desk: Desk) -> None:
    """A resident the log did not know of, told to end too late: by now it is what the log wants."""
    deployment_id = desk.story.resident()
    desk.sessions._unwanted["n1"] = [deployment_id, "d" * 32, "e" * 32]
    beat = Beat("n1", "1", "boot", "a" * 64, [])
    reply = desk.sessions.beat(beat, [], ahead={f"deployment-{'e' * 32}"})
    assert reply is not None
    assert reply.unwanted == ["d" * 32]
