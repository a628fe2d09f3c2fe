"""The invariants, each in a file of its own, written against the raw log and the true state of the machine.

They do not use `domain`: a rule that is wrong there must not be wrong here in the same way. `Violation` ends
a story with what was broken.
"""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant does not hold; the message says which, and with what."""
