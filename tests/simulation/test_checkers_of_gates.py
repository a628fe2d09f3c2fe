"""5 and 8 bite: gates that were not passed, and what is advertised and not done, each on a log that breaks it."""

from __future__ import annotations

import msgspec
import pytest

from schemas import events as ev
from schemas.codes import Code
from schemas.replies import Reply
from tests.simulation import forged as f
from tests.simulation.checkers.advertised import Advertised
from tests.simulation.checkers.gates import Gates

# --- 5 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def gates() -> tuple[Gates, f.Log]:
    """With a completed probe."""
    checker = Gates()
    log = f.Log(checker)
    log.add(f.requested("probe1", "probe"))
    log.add(f.completed(log, "probe1", f.probed()))
    return checker, log


def test_a_candidate_without_a_completed_probe() -> None:
    log = f.Log(Gates())
    log.add(f.requested("probe1", "probe"))
    with f.broken("no completed probe"):
        log.add(f.candidate())


def test_a_candidate_of_work_that_is_no_probe() -> None:
    log = f.Log(Gates())
    log.add(f.requested("probe1", "assess"))
    log.add(f.completed(log, "probe1", f.assessed()))
    with f.broken("no completed probe"):
        log.add(f.candidate())


def test_an_approval_of_another_digest(gates: tuple[Gates, f.Log]) -> None:
    log = gates[1]
    log.add(f.candidate())
    with f.broken("approved: a digest"):
        log.add(f.approved("d" * 64))


def test_a_deployment_without_approval_and_one_of_another_digest(gates: tuple[Gates, f.Log]) -> None:
    log = gates[1]
    log.add(f.candidate())
    with f.broken("created without an approval"):
        log.add(f.deployed())
    log.add(f.approved())
    with f.broken("created without an approval"):
        log.add(f.deployed("d" * 64))


def test_a_load_under_a_revoked_approval(gates: tuple[Gates, f.Log]) -> None:
    log = gates[1]
    log.add(f.candidate(), f.approved(), f.deployed())
    log.add(f.requested("w1", "load"))
    log.add(f.revoked())
    with f.broken("granted without an approval"):
        log.add(f.granted("w1"))
    with f.broken("asked to load without an approval"):
        log.add(f.requested("w2", "load"))


def test_a_resident_whose_load_nobody_was_granted(gates: tuple[Gates, f.Log]) -> None:
    log = gates[1]
    log.add(f.candidate(), f.approved(), f.deployed())
    log.add(f.requested("w1", "load"), f.residency("loading", "w1"))
    with f.broken("by a load that nobody was granted"):
        log.add(f.residency("resident", "w1", 1))


def test_a_resident_that_was_never_deployed(gates: tuple[Gates, f.Log]) -> None:
    with f.broken("never deployed"):
        gates[1].add(f.residency("resident", "w1", 1))


# --- 8 --------------------------------------------------------------------------------------------------------


class Bench:
    """A node whose worker lists one capability, with an assessment under way for `adapter`."""

    def __init__(self, adapter: str = f.ADAPTER) -> None:
        self.truth = f.ForgedTruth()
        self.checker = Advertised(self.truth)
        self.log = f.Log(self.checker)
        self.log.add(f.registered())
        self.log.add(f.requested("assess1", "assess", adapter=adapter))

    def loading(self) -> None:
        self.log.add(f.completed(self.log, "assess1", f.assessed()))
        self.log.add(f.profile(), f.deployed())
        self.log.add(f.requested("w1", "load"))

    def answer(self, code: Code | None, message: str = "") -> None:
        reply = Reply("rejected" if code else "accepted", "c", code=code, message=message)
        self.checker.heard("profile.create", msgspec.json.encode({"assessment_id": "assess1"}), reply)


def test_what_is_listed_and_assessed_as_incompatible() -> None:
    bench = Bench()
    with f.broken("is listed, and was assessed as incompatible"):
        bench.log.add(f.completed(bench.log, "assess1", f.assessed(compatible=False, reason="no")))


@pytest.mark.parametrize("result", [f.assessed(), f.assessed(compatible=False)], ids=["compatible", "no reason"])
def test_what_is_not_listed_and_not_refused_with_the_reason(result: object) -> None:
    bench = Bench("unheard_of")
    with f.broken("is not listed"):
        bench.log.add(f.completed(bench.log, "assess1", result))  # type: ignore[arg-type]


def test_a_profile_for_what_was_refused() -> None:
    bench = Bench("unheard_of")
    bench.log.add(f.completed(bench.log, "assess1", f.assessed(compatible=False, reason="there is none")))
    bench.answer(Code.RUNTIME_INCOMPATIBLE, "there is none")
    with f.broken("without a compatible assessment"):
        bench.log.add(f.profile(adapter="unheard_of"))


@pytest.mark.parametrize(
    ("code", "message"),
    [(None, ""), (Code.INTERNAL_ERROR, "there is none"), (Code.RUNTIME_INCOMPATIBLE, "")],
    ids=["accepted", "another code", "no reason"],
)
def test_a_refusal_that_does_not_say_so(code: Code | None, message: str) -> None:
    bench = Bench("unheard_of")
    bench.log.add(f.completed(bench.log, "assess1", f.assessed(compatible=False, reason="there is none")))
    bench.answer(Code.UNAVAILABLE)  # is no answer
    with f.broken("refused because 'there is none' was answered"):
        bench.answer(code, message)


def test_a_generation_that_runs_what_it_does_not_list() -> None:
    bench = Bench()
    bench.loading()
    bench.log.add(f.registered(2, {}))
    with f.broken("which it does not list"):
        bench.log.add(f.completed(bench.log, "w1", f.loaded(), generation=2))


def test_a_load_that_fails_although_nothing_is_broken() -> None:
    bench = Bench()
    bench.loading()
    with f.broken("nothing was broken"):
        bench.log.add(f.failed("w1"))


@pytest.mark.parametrize("excuse", ["faults", "cancelled", Code.NODE_DISABLED, Code.DEVICE_MEMORY_SHORT])
def test_a_load_may_fail_under_faults_or_by_a_persons_will(excuse: str) -> None:
    bench = Bench()
    bench.loading()
    bench.truth.quiet = excuse != "faults"
    if excuse == "cancelled":
        bench.log.add((ev.CancelRequested, {"work_id": "w1", "reason": ""}))
    bench.log.add(f.failed("w1", excuse if isinstance(excuse, Code) else "LOAD_FAILED"))


def test_what_is_listed_and_not_loaded_at_rest() -> None:
    bench = Bench()
    bench.loading()
    with f.broken("lists .* which is not loaded"):
        bench.checker.rest()
    bench.log.add(f.completed(bench.log, "w1", f.loaded()), f.residency("resident", "w1", 1))
    bench.checker.rest()
    assert bench.truth.covered == ["load in quiet times"]
    bench.log.add(f.registered(2))
    with f.broken("lists .* which is not loaded"):
        bench.checker.rest()
