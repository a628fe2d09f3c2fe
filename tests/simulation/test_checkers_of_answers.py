"""4 and 7 bite: owners that speak too long, answers that nobody may give, and outcomes that differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas import events as ev
from schemas.codes import Code
from schemas.live import InventoryEntry, LiveAnswer, Resident
from schemas.replies import Reply
from services.client.live import Holding
from services.eventlog.port import NewReceipt
from tests.simulation import forged as f
from tests.simulation.checkers.outcomes import Outcomes
from tests.simulation.checkers.owners import Owners

# --- 4 --------------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self) -> None:
        self.truth = f.ForgedTruth()
        self.checker = Owners(self.truth, session_ms=4_000)
        self.log = f.Log(self.checker)
        self.log.add(f.enrolled())
        self.log.add(f.registered(1))

    def serving(self, generation: str) -> None:
        self.truth.owners = [("n1", SimpleNamespace(generation=generation, is_valid=lambda: True))]


def said(state: str = "loaded", generation: str | None = "1", since_ms: int | None = 1) -> Holding:
    return Holding(
        deployment_id="d1", name="d", capability="x", node_id="n1", state=state,  # type: ignore[arg-type]
        reason="", session="alive", silent_ms=None, log_state="resident", log_generation="1", log_cause="",
        log_changed_at_ms=1, generation=generation, since_ms=since_ms,
    )  # fmt: skip


def answer(generation: str = "1", *, serving: bool = True, holds: bool = True) -> LiveAnswer:
    entry = InventoryEntry("d1", f.ARTIFACT, f.PROFILE, f.SHA, generation, "resident")
    return LiveAnswer("n1", generation, "b", serving, [Resident(entry, 1, 77, 0, 0, None)] if holds else [])


def test_a_worker_that_was_called_lost_and_serves() -> None:
    bench = Bench()
    bench.serving("1")
    bench.log.step()
    with f.broken("called lost and still serves"):
        bench.log.add(f.lost(1))


def test_a_worker_that_serves_again_after_it_was_called_lost() -> None:
    bench = Bench()
    bench.log.add(f.lost(1))
    bench.serving("1")
    with f.broken("called lost and still serves"):
        bench.log.step()


def test_a_worker_that_left_may_still_be_at_it() -> None:
    bench = Bench()
    bench.serving("1")
    bench.log.add(f.lost(1, "left"))


def test_a_worker_that_serves_a_term_after_its_successor_began() -> None:
    bench = Bench()
    bench.log.add(f.registered(2))
    bench.serving("1")
    bench.truth.at_s = 4.0
    bench.log.step()
    bench.truth.at_s = 4.1
    with f.broken("a term after its successor began"):
        bench.log.step()


def test_silence_is_unknown() -> None:
    checker = Bench().checker
    checker.told(said("unknown", None), None, 2, 0.0)
    with f.broken("no worker had answered"):
        checker.told(said(), None, 2, 0.0)


def test_loaded_by_a_generation_that_the_tables_knew_to_be_over() -> None:
    bench = Bench()
    bench.log.add(f.registered(2))
    bench.checker.told(said(), answer(), 2, 0.0)  # the tables had not come to the second yet
    with f.broken("called loaded by generation 1, not"):
        bench.checker.told(said(), answer(), 3, 0.0)


@pytest.mark.parametrize("words", [answer(serving=False), answer(holds=False)], ids=["stopped", "holds nothing"])
def test_loaded_although_the_worker_does_not_say_so(words: LiveAnswer) -> None:
    with f.broken("its worker did not say so"):
        Bench().checker.told(said(), words, 2, 0.0)


def test_loaded_without_an_age() -> None:
    with f.broken("without its age"):
        Bench().checker.told(said(since_ms=None), answer(), 2, 0.0)


def test_loaded_although_its_process_had_ended() -> None:
    bench = Bench()
    bench.truth.ended[77] = 5.0
    bench.checker.told(said(), answer(), 2, 4.0)  # it lived when it was asked
    with f.broken("its model process had ended before"):
        bench.checker.told(said(), answer(), 2, 6.0)


# --- 7 --------------------------------------------------------------------------------------------------------

COMMAND = msgspec.json.encode({"command_id": "c1", "actor": "ann"})


class Ledger:
    def __init__(self) -> None:
        self.checker = Outcomes()
        self.log = f.Log(self.checker)

    def commit(self, *replies: Reply, events: tuple[Any, ...] = ()) -> None:
        for event in events:
            self.checker.see(self.log.row(event), event)
        self.checker.committed(
            [NewReceipt(reply.command_id, b"", msgspec.json.encode(reply), None) for reply in replies]
        )

    def hear(self, reply: Reply, body: bytes = COMMAND) -> None:
        self.checker.heard(body, msgspec.json.encode(reply))


def enabled(command_id: str = "c1", actor: str = "ann") -> ev.NodeEnabled:
    return ev.NodeEnabled(at_ms=1, command_id=command_id, actor=actor, node_id="n1")


DONE, ELSE = Reply("accepted", "c1", result={"work_id": "w1"}), Reply("accepted", "c1", result={"work_id": "w2"})


def test_two_receipts_of_one_command() -> None:
    ledger = Ledger()
    ledger.commit(DONE)
    with f.broken("two receipts"):
        ledger.commit(DONE)


def test_a_command_that_changes_the_log_again() -> None:
    ledger = Ledger()
    ledger.commit(DONE, events=(enabled(),))
    with f.broken("changed the log again"):
        ledger.commit(events=(enabled(),))


def test_a_change_without_a_receipt_is_the_control_planes_own() -> None:
    ledger = Ledger()
    ledger.commit(events=(enabled("c2", "control"),))
    with f.broken("without a receipt"):
        ledger.commit(events=(enabled(),))


def test_a_rejected_command_that_changed_the_log() -> None:
    with f.broken("rejected and changed the log"):
        Ledger().commit(Reply("rejected", "c1", code=Code.NODE_ABSENT), events=(enabled(),))


def test_a_receipt_of_what_is_no_outcome() -> None:
    with f.broken("the receipt of c1 is"):
        Ledger().commit(Reply("rejected", "c1", code=Code.UNAVAILABLE))


@pytest.mark.parametrize("second", [ev.WorkCancelled, ev.EvidenceRejected], ids=["counted", "refused"])
def test_evidence_that_changes_the_log_twice(second: type[ev.Event]) -> None:
    ledger = Ledger()
    signed = ledger.log.signed("w1", "1", 1, f.drained(), "e1")
    about = {"at_ms": 1, "actor": "worker", "work_id": "w1", "generation": "1", "attempt": 1, "signed": signed}
    more = {"reason": Code.WORK_ENDED, "message": ""} if second is ev.EvidenceRejected else {}
    ledger.commit(Reply("accepted", "c1"), events=(ev.WorkCancelled(command_id="c1", **about),))
    with f.broken("evidence e1 changed the log twice"):
        ledger.commit(Reply("accepted", "c2"), events=(second(command_id="c2", **about, **more),))


def test_an_answer_before_its_receipt() -> None:
    ledger = Ledger()
    ledger.hear(Reply("rejected", "c1", code=Code.UNAVAILABLE))  # is no outcome
    with f.broken("without a receipt in the log"):
        ledger.hear(DONE)


@pytest.mark.parametrize(
    "told", [ELSE, Reply("rejected", "c1", code=Code.NODE_ABSENT), Reply("accepted", "c1")], ids=repr
)
def test_an_answer_that_is_not_the_receipt(told: Reply) -> None:
    ledger = Ledger()
    ledger.commit(DONE)
    ledger.hear(DONE)
    with f.broken("has the outcome"):
        ledger.hear(told)


def test_a_secret_is_told_once() -> None:
    ledger = Ledger()
    ledger.commit(DONE)
    secret = {"work_id": "w1", "token": "s"}
    ledger.hear(Reply("accepted", "c1", result=secret))
    with f.broken("has the outcome"):
        ledger.hear(Reply("accepted", "c1", result=secret, repeated=True))


def test_another_body_under_the_same_id() -> None:
    ledger = Ledger()
    ledger.commit(DONE)
    ledger.hear(DONE)
    other = msgspec.json.encode({"command_id": "c1", "actor": "bob"})
    ledger.hear(Reply("rejected", "c1", code=Code.DUPLICATE_COMMAND), other)
    with f.broken("an outcome for two bodies"):
        ledger.hear(DONE, other)
    with f.broken("and it was the same"):
        ledger.hear(Reply("rejected", "c1", code=Code.DUPLICATE_COMMAND))


def test_a_defect_is_no_answer() -> None:
    with f.broken("answered with a defect"):
        Ledger().hear(Reply("rejected", "c1", code=Code.INTERNAL_ERROR))


def test_a_receipt_that_is_lost_at_rest() -> None:
    ledger = Ledger()
    ledger.commit(DONE)
    ledger.checker.stored(["c1"])
    with f.broken("lost or made up"):
        ledger.checker.stored([])
