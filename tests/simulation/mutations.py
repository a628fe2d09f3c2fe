"""Safeguards taken out, one at a time, to see that the checkers bite.

Each is a patch of production code that a careless change could amount to. `test_mutations.py` tells stories
under it until one breaks; a mutation that no story notices would mean that its safeguard is not tested.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

from msgspec.structs import replace

import domain.admission
import domain.claims
import domain.folding.fencing
import services.client.live
from domain.folding.states import WorkState
from projections import project as projecting
from schemas.commands import ExpireLease, PassDeadline, SubmitEvidence
from schemas.devices import Reservation
from services.control.sessions import Sessions
from services.control.submission import Submission
from services.eventlog.memory import MemoryLog
from tests.simulation.checkers import Checker
from tests.simulation.checkers.admission import Admission
from tests.simulation.checkers.advertised import Advertised
from tests.simulation.checkers.agreement import Agreement
from tests.simulation.checkers.epochs import Epochs
from tests.simulation.checkers.fencing import Fencing
from tests.simulation.checkers.gates import Gates
from tests.simulation.checkers.leases import Leases
from tests.simulation.checkers.orphans import Orphans
from tests.simulation.checkers.outcomes import Outcomes
from tests.simulation.checkers.owners import Owners
from worker.adapters import registry


class Mutation(NamedTuple):
    """What is put in place of what, and the checker that should notice (Checker: whichever comes first).

    `faults` are the kinds under which it shows soonest, all where none is named.
    """

    by: type[Checker]
    names: dict[str, Any]
    faults: tuple[str, ...] = ()

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, replacement in self.names.items():
                stack.enter_context(mock.patch(name, replacement))
            yield


_fence_work = domain.folding.fencing.fence_work
_claim_refused = domain.claims._claim_refused
_append = MemoryLog.append
_due = Sessions.due
_project = projecting.project
_judge = services.client.live._judge
_promised_on = domain.admission.promised_on
_available_bytes = domain.admission.available_bytes


def _any_generation(work: Any, generation: str, attempt: int, at_ms: int) -> Any:
    held = work.lease.generation if work.lease is not None else generation
    return _fence_work(work, held, attempt, at_ms)


def _any_attempt(work: Any, generation: str, attempt: int, at_ms: int) -> Any:
    held = work.lease.attempt if work.lease is not None else attempt
    return _fence_work(work, generation, held, at_ms)


def _claimed_by_anyone(command: Any, work: Any, node: Any) -> Any:
    return _claim_refused(replace(command, generation=node.generation) if node else command, work, node)


async def _nothing(self: Any) -> None:
    """In place of what puts things right."""


async def _append_without_receipts(self: Any, events: Any, receipts: Any, epoch: int) -> Any:
    return await _append(self, events, [], epoch)


async def _append_for_anyone(self: Any, events: Any, receipts: Any, epoch: int) -> Any:
    return await _append(self, events, receipts, self._leader.epoch)


def _due_without_ends(self: Sessions) -> Any:
    return [command for command in _due(self) if not isinstance(command, ExpireLease | PassDeadline)]


def _evidence_without_receipt(command: Any, respond: Any, *, receipt: bool = True) -> Submission:
    return Submission(command, respond, receipt=receipt and not isinstance(command, SubmitEvidence))


def _project_without_cancelled(before: Any, after: Any, position: int, rows: Any) -> None:
    if not (isinstance(after, WorkState) and after.stage == "cancelled"):
        _project(before, after, position, rows)


def _any_generation_is_loaded(deployment: Any, node: Any, answer: Any) -> Any:
    known = replace(node, generation=answer.generation) if node is not None and answer is not None else node
    return _judge(deployment, known, answer)


def _everything_is_listed() -> dict[str, list[str]]:
    return {name: list(entry.tasks) for name, entry in registry.ENTRIES.items()}


def _without_pending(fleet: Any, node_id: str, device_index: int, besides: str = "") -> Any:
    return _promised_on(fleet, node_id, device_index, besides)._replace(pending=0)


def _without_reserve(reservation: Reservation) -> int:
    return _available_bytes(reservation) + reservation.reserve_bytes


# safeguard -> it is taken out. The number is that of the invariant which then does not hold.
MUTATIONS: dict[str, Mutation] = {
    "1 leases end with their generation": Mutation(Leases, {"domain.nodes.end_hold": lambda *_: []}),
    "2 generation check": Mutation(
        Fencing,
        {
            "domain.evidence.fence_session": lambda node, generation: None,
            "domain.evidence.fence_work": _any_generation,
            "domain.folding.fold.fence_work": _any_generation,
            "domain.claims._claim_refused": _claimed_by_anyone,
        },
    ),
    "2 attempt check": Mutation(
        Fencing,
        {"domain.evidence.fence_work": _any_attempt, "domain.folding.fold.fence_work": _any_attempt},
        ("disk full",),
    ),
    "3 expiry": Mutation(Orphans, {"services.control.sessions.Sessions.due": _due_without_ends}),
    "3 residents of a disabled node": Mutation(Orphans, {"domain.nodes._lose_residents": lambda *_: []}),
    "4 self-stop": Mutation(Owners, {"worker.session.margin_ms": lambda term_ms: -1e12}),  # its term never ends
    "4 generation of an answer": Mutation(Owners, {"services.client.live._judge": _any_generation_is_loaded}),
    "5 approval": Mutation(Gates, {"domain.jobs._load_refused": lambda deployment, node_id, world: None}),
    "6 projection": Mutation(Agreement, {"services.projector.projector.project": _project_without_cancelled}),
    "6 expected sequence": Mutation(Agreement, {"services.relay.message.HEADER_EXPECTED": "Nobody-Reads-This"}),
    "7 receipt": Mutation(
        Outcomes,
        {
            "services.control.writer.Writer._remember": lambda self, command_id, receipt: None,
            "services.eventlog.memory.MemoryLog.append": _append_without_receipts,
        },
    ),
    "7 receipt of evidence": Mutation(Outcomes, {"services.control.intake.Submission": _evidence_without_receipt}),
    "8 missing packages": Mutation(Advertised, {"worker.agent.capabilities": _everything_is_listed}),
    "9 work under way": Mutation(Admission, {"domain.admission.promised_on": _without_pending}),
    "9 reserve": Mutation(Admission, {"domain.admission.available_bytes": _without_reserve}, ("foreign memory",)),
    "memory after a failed append": Mutation(Checker, {"services.control.writer.Writer._clean": _nothing}),
    "epoch check": Mutation(Epochs, {"services.eventlog.memory.MemoryLog.append": _append_for_anyone}),
}
