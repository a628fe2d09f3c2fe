"""1, 2 and 3 bite: leases, fencing, orphans, and the epoch's own rule, each on a log that breaks it."""

from __future__ import annotations

import pytest

from schemas import events as ev
from schemas.codes import Code
from schemas.events import ResidencyState
from tests.simulation import forged as f
from tests.simulation.checkers.epochs import Epochs
from tests.simulation.checkers.fencing import Fencing
from tests.simulation.checkers.leases import Leases
from tests.simulation.checkers.orphans import Orphans, bound_ms
from tests.simulation.checkers.truth import Active

LEADER_MS = 2_000
ENDED = ev.LeaseEnded, {
    "work_id": "w1", "generation": "1", "attempt": 1, "cause": Code.LEASE_ENDED, "detail": "", "again": True,
}  # fmt: skip


class Bench:
    """A node with a worker of generation 1, and the checkers of work on its log."""

    def __init__(self) -> None:
        self.truth, leases = f.ForgedTruth(), Leases()
        self.orphans = Orphans(leases, self.truth, LEADER_MS)
        self.log = f.Log(Epochs(), Fencing(leases), leases, self.orphans)
        self.log.add(f.enrolled())
        self.log.add(f.registered())

    def at(self, now_ms: int, epoch: int = 1) -> None:
        self.truth.control = Active(epoch, now_ms)
        self.log.step()


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- 1 --------------------------------------------------------------------------------------------------------


def test_two_live_leases_of_one_work_item(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "assess"), f.granted("w1"))
    with f.broken("two live leases"):
        bench.log.add(f.granted("w1", attempt=2))


def test_a_lease_of_a_generation_that_is_over(bench: Bench) -> None:
    bench.log.add(f.registered(2))
    with f.broken("generation 1, which is over"):
        bench.log.add(f.requested("w1", "assess"), f.granted("w1", generation=1))


def test_a_lease_that_outlives_its_generation(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "assess"), f.granted("w1"))
    with f.broken("a lease of generation 1 of n1, which is over"):
        bench.log.add(f.registered(2))  # in whose transaction the lease should have ended


def test_a_lease_that_outlives_its_session(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "assess"), f.granted("w1"))
    with f.broken("which is over"):
        bench.log.add(f.lost())


def test_an_attempt_that_does_not_follow(bench: Bench) -> None:
    with f.broken("attempt 2 does not follow"):
        bench.log.add(f.requested("w1", "assess"), f.granted("w1", attempt=2))


def test_a_lease_after_the_works_end(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "assess"), f.cancelled("w1"))
    with f.broken("leased after its end"):
        bench.log.add(f.granted("w1"))


def test_a_renewal_of_what_is_not_leased(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "assess"))
    with f.broken("renewed that is not live"):
        bench.log.add((ev.LeaseRenewed, {"work_id": "w1", "generation": "1", "attempt": 1, "until_ms": 1}))


def test_a_generation_that_does_not_grow(bench: Bench) -> None:
    with f.broken("not newer"):
        bench.log.add(f.registered(1))


# --- 2 --------------------------------------------------------------------------------------------------------


def test_the_word_of_an_older_generation(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "probe"), f.granted("w1"))
    bench.log.add(f.registered(2), ENDED)
    bench.log.add(f.granted("w1", generation=2, attempt=2))
    with f.broken("the word of generation 1 counted"):
        bench.log.add(f.completed(bench.log, "w1", f.probed(), generation=1, attempt=1))


def test_the_word_of_an_older_attempt(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "probe"), f.granted("w1"))
    bench.log.add(ENDED)
    bench.log.add(f.granted("w1", attempt=2))
    with f.broken("attempt 1 of w1 counted"):
        bench.log.add(f.completed(bench.log, "w1", f.probed(), attempt=1))


def test_the_word_of_an_ended_lease(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "probe"), f.granted("w1"))
    bench.log.add(ENDED)
    with f.broken("the live lease is None"):
        bench.log.add(f.completed(bench.log, "w1", f.probed()))


def test_evidence_after_the_leases_end(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "probe"), f.granted("w1", until_ms=900))
    with f.broken("after the lease's end"):
        bench.log.add(f.completed(bench.log, "w1", f.probed()))


# --- 3 --------------------------------------------------------------------------------------------------------


def test_work_past_its_deadline(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "load", deadline_ms=10_000), f.residency("loading", "w1"))
    bench.at(10_000)  # from here on somebody could have seen it
    bench.at(10_000 + bound_ms(LEADER_MS))
    with f.broken("queued .* past its deadline"):
        bench.at(10_001 + bound_ms(LEADER_MS))


def test_work_past_its_lease(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "assess", deadline_ms=90_000), f.granted("w1", until_ms=7_000))
    bench.at(0)
    bench.at(7_000 + bound_ms(LEADER_MS))
    with f.broken("leased .* past its lease"):
        bench.at(7_001 + bound_ms(LEADER_MS))


def test_nothing_ends_while_no_control_plane_can_reach_the_log(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "assess", deadline_ms=10_000))
    bench.at(0)
    bench.truth.control = None
    bench.log.step()
    bench.at(99_000, epoch=2)  # one is there again: it has its time from now
    bench.at(99_000 + bound_ms(LEADER_MS), epoch=2)
    bench.at(199_000, epoch=3)  # and so has its successor
    with f.broken("past its deadline"):
        bench.at(199_001 + bound_ms(LEADER_MS), epoch=3)


def test_open_work_on_a_disabled_node(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "assess"))
    with f.broken("open on n1, which is disabled"):
        bench.log.add(f.disabled())


@pytest.mark.parametrize("state", ["resident", "draining"])
def test_a_residency_on_a_disabled_node(bench: Bench, state: ResidencyState) -> None:
    bench.log.add(f.residency(state, "w1", 1))
    with f.broken("disabled"):
        bench.log.add(f.disabled())


def test_a_residency_of_a_generation_that_is_over(bench: Bench) -> None:
    bench.log.add(f.residency("resident", "w1", 1))
    with f.broken("under generation 1, which is over"):
        bench.log.add(f.registered(2))


def test_a_drain_that_outlives_the_worker_it_was_for(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "drain"))
    with f.broken("that it was for is over"):
        bench.log.add(f.lost())


def test_a_load_that_ended_and_left_its_residency_on_the_way(bench: Bench) -> None:
    bench.log.add(f.requested("w1", "load"), f.residency("loading", "w1"))
    with f.broken("should end that, has ended"):
        bench.log.add(f.failed("w1"))


def test_open_work_at_rest(bench: Bench) -> None:
    bench.orphans.rest()
    bench.log.add(f.requested("w1", "assess"))
    with f.broken("open at rest"):
        bench.orphans.rest()


# --- one writer -----------------------------------------------------------------------------------------------


def test_an_append_of_an_older_epoch() -> None:
    Epochs().appended(2, 2)
    with f.broken("epoch 1 appended after epoch 2"):
        Epochs().appended(1, 2)


def test_a_version_that_does_not_follow() -> None:
    epochs, log = Epochs(), f.Log()
    event = ev.NodeEnabled(at_ms=1, command_id="c", actor="x", node_id="n1")
    epochs.see(log.row(event), event)
    skipped = log.row(event)
    with f.broken("does not follow"):
        epochs.see(log.row(event), event)
    epochs.see(skipped, event)
