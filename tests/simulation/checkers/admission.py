"""9: the sum of reserved memory on a device never exceeds what was measured free, less the reserve.

Added up here from the events alone, by a rule of its own. With U in use, E of it by others, and R_i what each live
lease or resident has reserved, a grant that reserves R for itself must leave the reserve S of the device's total T free

    by what is in use now:          U + (R_i of leases) + R + S <= T
    by what has been promised:      E + (all R_i)       + R + S <= T

where E is U less what the worker's processes hold; where the driver does not tell that, residents count with what they
reserved. The numbers in the event must be these sums, a reading that the node's driver gave for this claim, and the
reserve that was set; R must be no less than what the candidate's probe was measured to hold (for a probe: the weights),
and, where the driver tells whose memory is whose, no more.

In the machine itself: what was admitted gets its memory, unless somebody else took some after the reading. And what
is refused did not fit: by one of the latest readings, it must have been short.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas import events as ev
from schemas import evidence as se
from schemas.codes import Code
from schemas.devices import Reservation
from schemas.work import JobSpec, ProbeSpec, WorkSpec
from services.eventlog.port import LogRow
from tests.simulation.checkers import Checker, Violation
from tests.simulation.checkers.truth import Truth
from worker.duty.claiming import PAUSE_MS_MAX, SENDINGS_MAX
from worker.duty.leases import REQUEST_MS_MAX
from worker.memory.device_watch import LOOK_SECONDS_MAX

# How old a claim's reading may be when it is decided: asking the driver, and sending it so often with pauses between.
READING_S_MAX = LOOK_SECONDS_MAX + (SENDINGS_MAX * REQUEST_MS_MAX + (SENDINGS_MAX - 1) * PAUSE_MS_MAX) / 1_000
SPAWN_S_MAX = 5.0  # from a grant to its model process
SLACK_BYTES = 1_000_000  # between what a probe was seen to hold and what is reserved for its like
HOLDING = ("resident", "draining", "unloading")
Device = tuple[str, int]  # node and index


class Reserved(NamedTuple):
    device: Device
    bytes: int
    pending: bool  # of a lease, whose work may not have taken it yet


class Admission(Checker):
    def __init__(self, truth: Truth, reserve_bytes: int) -> None:
        self._truth = truth
        self._reserve_bytes = reserve_bytes
        self._reserved: dict[str, Reserved] = {}  # by work id, or by deployment and node
        self._totals: dict[Device, int] = {}
        self._specs: dict[str, tuple[str, WorkSpec]] = {}  # node and spec of each work
        self._profiles: dict[str, tuple[str, int, str]] = {}  # device, index and assessment of each profile
        self._weights: dict[str, int] = {}  # by assessment
        self._probed: dict[str, int] = {}  # by candidate: what its probe held of the device
        self._candidates: dict[str, str] = {}  # by deployment
        self._granted: dict[str, Reservation] = {}  # by load
        self._short_seen = 0

    def see(self, row: LogRow, event: ev.Event) -> None:
        match event:
            case ev.ProfileCreated():
                profile = event.profile
                self._profiles[event.profile_id] = (profile.device, profile.device_index, event.assessment_id)
            case ev.DeploymentCreated():
                self._candidates[event.deployment_id] = event.candidate_id
            case ev.WorkRequested():
                self._specs[event.work_id] = (event.node_id, event.spec)
            case ev.LeaseGranted():
                self._grant(event)
            case ev.LeaseEnded() | ev.WorkCancelled():
                self._reserved.pop(event.work_id, None)
            case ev.WorkFailed():
                self._fail(event)
                self._reserved.pop(event.work_id, None)
            case ev.WorkCompleted():
                self._reserved.pop(event.work_id, None)
                self._learn(event.work_id, event.result)
            case ev.ResidencyChanged():
                self._reside(event)
            case _:
                pass

    def _learn(self, work_id: str, result: se.Statement) -> None:
        if isinstance(result, se.Assessed):
            self._weights[work_id] = result.weights_bytes or 0
        elif isinstance(result, se.Probed):
            memory = result.memory
            own = memory.device_own_loaded
            measured = own.bytes if isinstance(own, se.Reading) else None
            self._probed[work_id] = measured if measured is not None else memory.allocator_loaded.bytes or 0

    def _needs(self, work_id: str) -> tuple[Device, int, int | None] | None:
        """The device, and the least and the most that may be reserved of it; None for work that needs none."""
        node_id, spec = self._specs[work_id]
        if not isinstance(spec, ProbeSpec) and not (isinstance(spec, JobSpec) and spec.verb == "load"):
            return None
        device, index, assessment_id = self._profiles[spec.profile_id]
        if device != "cuda":
            return None
        if isinstance(spec, JobSpec):
            held = self._probed[self._candidates[spec.deployment_id]]
            return (node_id, index), held, held + SLACK_BYTES if self._truth.is_attributed() else None
        return (node_id, index), self._weights[assessment_id], None

    def _grant(self, event: ev.LeaseGranted) -> None:
        needs, r = self._needs(event.work_id), event.reserved
        self._reserved.pop(event.work_id, None)
        if needs is None or r is None:
            if needs is not None or r is not None:
                raise Violation(f"work {event.work_id} was granted with the reservation {r}; it needs {needs}")
            return
        device, least, most = needs
        if (event.node_id, r.device_index) != device or r.needed_bytes < least:
            raise Violation(f"work {event.work_id} needs {least} bytes of {device} at least, and reserved {r}")
        if most is not None and r.needed_bytes > most:
            raise Violation(f"work {event.work_id} reserved {r.needed_bytes} bytes; its probe held {least}")
        self._check_reading(event.work_id, r)
        self._check_sum(event.work_id, device, r)
        self._reserved[event.work_id] = Reserved(device, r.needed_bytes, True)
        self._totals[device] = r.total_bytes
        self._granted[event.work_id] = r

    def _check_reading(self, work_id: str, r: Reservation) -> None:
        since_s = self._truth.now_s() - READING_S_MAX
        told = {(total, used) for at_s, total, used in self._truth.readings() if at_s >= since_s}
        if (r.total_bytes, r.used_bytes) not in told:
            raise Violation(f"work {work_id} was admitted on {r}, which the driver did not tell")
        if r.reserve_bytes != self._reserve_bytes:
            raise Violation(f"work {work_id} was admitted with another reserve than {self._reserve_bytes}: {r}")

    def _check_sum(self, work_id: str, device: Device, r: Reservation) -> None:
        if (r.pending_bytes, r.resident_bytes) != self._sums(device):
            raise Violation(f"work {work_id} was admitted on {r}; leases and residents reserved {self._sums(device)}")
        if self._left(device, r.needed_bytes, r.total_bytes, r.used_bytes, r.own_bytes) < 0:
            leases, residents = self._sums(device)
            raise Violation(
                f"work {work_id} reserved {r.needed_bytes} of {device}, where {residents} bytes were reserved by "
                f"residents and {leases} by leases: {r}"
            )

    def _left(self, device: Device, needed: int, total: int, used: int, own: int | None) -> int:
        """What both rules leave free beyond the reserve, negative where one is broken."""
        leases, residents = self._sums(device)
        others = max(used - (residents if own is None else own), 0)
        by_use = total - used - leases
        by_promise = total - others - leases - residents
        return min(by_use, by_promise) - needed - self._reserve_bytes

    def _sums(self, device: Device) -> tuple[int, int]:
        there = [each for each in self._reserved.values() if each.device == device]
        return (
            sum(each.bytes for each in there if each.pending),
            sum(each.bytes for each in there if not each.pending),
        )

    def _fail(self, event: ev.WorkFailed) -> None:
        """A refused claim: the work fails without having been leased, and it cannot have fitted."""
        if event.code is not Code.DEVICE_MEMORY_SHORT:
            return
        needs = self._needs(event.work_id)
        if event.signed is not None or needs is None or not event.message.startswith("unsatisfiable: device"):
            raise Violation(f"work {event.work_id} failed for memory: {event.message!r}; it needs {needs}")
        device, least, most = needs
        if most is not None and self._said_needed(event) > most:
            raise Violation(f"work {event.work_id} was refused for want of more than its probe held, {least}: {event}")
        since_s = self._truth.now_s() - READING_S_MAX
        recent = [(total, used) for at_s, total, used in self._truth.readings() if at_s >= since_s]
        needed = max(least, self._said_needed(event))
        if recent and all(
            total is not None and used is not None and self._left(device, needed, total, used, 0) >= 0
            for total, used in recent
        ):
            raise Violation(f"work {event.work_id} was refused {needed} bytes of {device}, and they were free")

    @staticmethod
    def _said_needed(event: ev.WorkFailed) -> int:
        return int(event.message.split(": ")[2].split(" ")[0])

    def _reside(self, event: ev.ResidencyChanged) -> None:
        holder = f"{event.deployment_id} on {event.node_id}"
        if event.state not in HOLDING:
            self._reserved.pop(holder, None)
            return
        granted = self._granted.get(event.work_id)
        if event.state == "resident" and granted != event.reserved and event.work_id in self._granted:
            raise Violation(f"{holder} is resident with {event.reserved}; its load reserved {granted}")
        if event.reserved is not None:
            device = (event.node_id, event.reserved.device_index)
            self._reserved[holder] = Reserved(device, event.reserved.needed_bytes, False)

    def step(self) -> None:
        for device, total in self._totals.items():
            leases, residents = self._sums(device)
            if leases + residents > total - self._reserve_bytes:
                raise Violation(f"{leases + residents} bytes of {device} are reserved; it has {total}")
        short = self._truth.out_of_memory()
        for worker, spawned_s, at_s in short[self._short_seen :]:
            since_s = spawned_s - SPAWN_S_MAX - READING_S_MAX
            if not any(by is not worker and since_s <= taken_s <= at_s for taken_s, by, _ in self._truth.taken()):
                raise Violation("what was admitted got no memory, and nobody else had taken any")
        self._short_seen = len(short)

    def rest(self) -> None:
        pending = [holder for holder, each in self._reserved.items() if each.pending]
        if pending:
            raise Violation(f"reserved at rest by work that has ended: {pending[:5]}")
