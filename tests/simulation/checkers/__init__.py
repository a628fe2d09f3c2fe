"""The invariants, each in a file of its own, written against the raw log and the true state of the machine.

They do not use `domain`'s rules: one that is wrong there must not be wrong here in the same way. (Agreement is the
exception, since it is about what `domain` folds to.) All of them are asked after every step of a story: after each
transaction of the log, each write of the tables, each message that EVENTS takes, each answer that somebody hears, and
each TICK in which nothing of this happened. `Violation` ends a story with what was broken.
"""

from __future__ import annotations

from schemas import events as ev
from services.eventlog.port import LogRow


class Violation(AssertionError):
    """An invariant does not hold; the message says which, and with what."""


class Checker:
    """One invariant. Each of the three raises Violation."""

    def see(self, row: LogRow, event: ev.Event) -> None:
        """Take in the next row of the log. Others of its transaction may follow at once."""

    def step(self) -> None:
        """What must hold after each step, between transactions."""

    def rest(self) -> None:
        """What must hold besides once everything was mended and nothing is under way any more."""
