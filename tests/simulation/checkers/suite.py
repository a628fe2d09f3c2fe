"""All the checkers of one story, in the order in which they look at a row of the log.

Fencing comes before leases: it judges an event by the leases that were there before.
"""

from __future__ import annotations

from typing import NamedTuple

from services.control.serve import Terms
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
from tests.simulation.checkers.truth import Truth


class Suite(NamedTuple):
    """`checkers` are all; those with a name also hear of more than the log."""

    epochs: Epochs
    outcomes: Outcomes
    owners: Owners
    agreement: Agreement
    advertised: Advertised
    checkers: list[Checker]


def make_suite(truth: Truth, terms: Terms) -> Suite:
    leases, epochs, outcomes = Leases(), Epochs(), Outcomes()
    owners, agreement, advertised = Owners(truth, terms.session_ms), Agreement(truth), Advertised(truth)
    checkers: list[Checker] = [
        epochs, agreement, Fencing(leases), leases, owners, Gates(), outcomes,
        Orphans(leases, truth, terms.leader_ms), advertised, Admission(truth, terms.device_reserve_bytes),
    ]  # fmt: skip
    return Suite(epochs, outcomes, owners, agreement, advertised, checkers)
