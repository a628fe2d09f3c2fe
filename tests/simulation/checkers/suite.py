"""All the checkers of one story, in the order in which they look at a row of the log.

Fencing comes before leases: it judges an event by the leases that were there before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from domain.folding.states import State
from tests.simulation.checkers import Checker
from tests.simulation.checkers.agreement import Agreement
from tests.simulation.checkers.epochs import Epochs
from tests.simulation.checkers.fencing import Fencing
from tests.simulation.checkers.gates import Gates
from tests.simulation.checkers.leases import Leases
from tests.simulation.checkers.orphans import Active, Orphans
from tests.simulation.checkers.outcomes import Outcomes
from tests.simulation.checkers.owners import Owners, Truth


class Suite(NamedTuple):
    epochs: Epochs
    outcomes: Outcomes
    owners: Owners
    agreement: Agreement
    checkers: list[Checker]


def make_suite(
    truth: Truth,
    active: Callable[[], Active | None],
    memory: Callable[[], Mapping[str, State | None] | None],
    session_ms: int,
    leader_ms: int,
) -> Suite:
    leases = Leases()
    epochs, outcomes, owners, agreement = Epochs(), Outcomes(), Owners(truth, session_ms), Agreement(memory)
    checkers: list[Checker] = [
        epochs, agreement, Fencing(leases), leases, owners, Gates(), outcomes, Orphans(leases, active, leader_ms),
    ]  # fmt: skip
    return Suite(epochs, outcomes, owners, agreement, checkers)
