"""9 bites: reservations that do not add up, rest on no reading, or promise what the device has not.

The device has 1,000 bytes, of which 100 are always left free; a model takes 300.
"""

from __future__ import annotations

from typing import Any

import pytest

from schemas.devices import Reservation
from tests.simulation import forged as f
from tests.simulation.checkers.admission import READING_S_MAX, Admission

TOTAL, RESERVE, MODEL = 1_000, 100, 300


def kept(needed: int = MODEL, used: int = 0, resident: int = 0, pending: int = 0, **more: Any) -> Reservation:
    values: dict[str, Any] = {
        "device_index": 0, "needed_bytes": needed, "source": "measured", "total_bytes": TOTAL, "used_bytes": used,
        "reserve_bytes": RESERVE, "resident_bytes": resident, "pending_bytes": pending, "own_bytes": 0, **more,
    }  # fmt: skip
    return Reservation(**values)


class Bench:
    """A deployment whose probe held MODEL bytes of the device, under a CUDA profile."""

    def __init__(self, device: str = "cuda") -> None:
        self.truth = f.ForgedTruth()
        self.truth.told = [(0.0, TOTAL, 0)]
        self.checker = Admission(self.truth, RESERVE)
        self.log = f.Log(self.checker)
        self.log.add(f.requested("assess1", "assess"))
        self.log.add(f.completed(self.log, "assess1", f.assessed(weights_bytes=200)))
        self.log.add(f.profile(device))
        self.log.add(f.requested("probe1", "probe"))
        self.log.add(f.completed(self.log, "probe1", f.probed(MODEL)))
        self.log.add(f.deployed())

    def load(self, work_id: str, reserved: Reservation | None, used: int = 0) -> None:
        """A load that is asked for and granted, with a reading of the driver."""
        self.truth.told.append((self.truth.at_s, TOTAL, used))
        self.log.add(f.requested(work_id, "load"), f.granted(work_id, reserved=reserved))

    def short(self, message: str, **more: Any) -> None:
        self.log.add(f.requested("w9", "load"), f.failed("w9", "DEVICE_MEMORY_SHORT", message, **more))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_work_on_a_device_without_a_reservation_and_other_work_with_one(bench: Bench) -> None:
    with f.broken("granted with the reservation None"):
        bench.load("w1", None)
    with f.broken("it needs None"):
        Bench("cpu").load("w1", kept())


def test_less_than_the_probe_held_and_more(bench: Bench) -> None:
    with f.broken("needs 300 bytes"):
        bench.load("w1", kept(MODEL - 1))
    bench.truth.attributed = False  # then nobody knows how much of the growth was the model's
    bench.load("w1", kept(MODEL + 50))
    bench = Bench()
    bench.checker._probed["probe1"] = 0
    with f.broken("its probe held 0"):
        bench.load("w1", kept(2_000_000))


def test_a_probe_needs_its_weights(bench: Bench) -> None:
    with f.broken("needs 200 bytes"):
        bench.log.add(f.requested("p2", "probe"), f.granted("p2", reserved=kept(199)))


def test_another_device_than_the_profiles(bench: Bench) -> None:
    with f.broken("reserved"):
        bench.load("w1", kept(device_index=1))


def test_a_reading_that_the_driver_did_not_tell_and_one_of_long_ago(bench: Bench) -> None:
    with f.broken("which the driver did not tell"):
        bench.load("w1", kept(used=5))
    bench = Bench()
    bench.truth.at_s = READING_S_MAX + 1
    with f.broken("which the driver did not tell"):
        bench.log.add(f.requested("w1", "load"), f.granted("w1", reserved=kept()))


def test_another_reserve_than_the_one_that_was_set(bench: Bench) -> None:
    with f.broken("another reserve"):
        bench.load("w1", kept(reserve_bytes=0))


def test_sums_that_leave_out_work_under_way_or_residents(bench: Bench) -> None:
    bench.load("w1", kept())
    with f.broken(r"leases and residents reserved \(300, 0\)"):
        bench.load("w2", kept())
    bench.log.add(f.completed(bench.log, "w1", f.loaded()), f.residency("resident", "w1", 1, reserved=kept()))
    with f.broken(r"leases and residents reserved \(0, 300\)"):
        bench.load("w3", kept(used=MODEL, own_bytes=MODEL), used=MODEL)


@pytest.mark.parametrize(
    ("used", "own"), [(601, 0), (601, 601), (601, None)], ids=["others'", "our own", "nobody knows whose"]
)
def test_more_than_is_free_less_the_reserve(bench: Bench, used: int, own: int | None) -> None:
    with f.broken("reserved 300 of"):
        bench.load("w1", kept(used=used, own_bytes=own), used=used)


def test_more_than_can_be_promised(bench: Bench) -> None:
    """Two loads have reserved and not taken yet: free now is not free for a third with its reserve."""
    bench.load("w1", kept())
    bench.load("w2", kept(pending=MODEL))
    with f.broken("reserved 300 of"):
        bench.load("w3", kept(used=50, pending=2 * MODEL), used=50)


def test_what_fits_exactly(bench: Bench) -> None:
    bench.load("w1", kept(used=600), used=600)


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_an_end_gives_back(bench: Bench, end: str) -> None:
    bench.load("w1", kept())
    bench.log.add(f.failed("w1") if end == "failed" else f.cancelled("w1"))
    bench.load("w2", kept())


def test_a_resident_with_another_reservation_than_its_load(bench: Bench) -> None:
    bench.load("w1", kept())
    with f.broken("its load reserved"):
        bench.log.add(f.completed(bench.log, "w1", f.loaded()), f.residency("resident", "w1", 1))


def test_what_was_admitted_got_no_memory(bench: Bench) -> None:
    ours, theirs = object(), object()
    bench.truth.took = [(1.0, ours, MODEL)]
    bench.truth.short = [(ours, 2.0, 3.0)]
    with f.broken("nobody else had taken any"):
        bench.log.step()
    bench = Bench()
    bench.truth.took, bench.truth.short = [(2.5, theirs, 9)], [(ours, 2.0, 3.0)]
    bench.log.step()


def test_a_refusal_of_what_was_free(bench: Bench) -> None:
    with f.broken("they were free"):
        bench.short("unsatisfiable: device 0: 300 bytes are needed (measured); 10 bytes are available")


def test_a_refusal_is_right_where_it_is_short_or_nothing_was_measured(bench: Bench) -> None:
    bench.truth.told = [(0.0, TOTAL, 700)]
    bench.short("unsatisfiable: device 0: 300 bytes are needed (measured); 200 bytes are available")
    bench = Bench()
    bench.truth.told = [(0.0, None, None)]
    bench.short("unsatisfiable: device 0: 300 bytes are needed (measured); how much is free is not known: x")


def test_a_refusal_for_want_of_more_than_the_probe_held(bench: Bench) -> None:
    with f.broken("more than its probe held"):
        bench.short("unsatisfiable: device 0: 9000000 bytes are needed (measured); 200 bytes are available")


def test_a_refusal_that_does_not_say_what_is_short(bench: Bench) -> None:
    with f.broken("failed for memory"):
        bench.short("no room")


def test_a_reservation_of_a_lease_at_rest(bench: Bench) -> None:
    bench.checker.rest()
    bench.load("w1", kept())
    with f.broken("reserved at rest"):
        bench.checker.rest()
