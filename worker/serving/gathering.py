"""Whether the next batch waits for callers that were just answered, and for how many of them. No timer is involved.

Most callers are loops: answered, they ask again at once. A batch that begins before they can falls into two groups that
take turns, each computed while the other's answers travel, in batches of half the size that could be. So when a batch
is done, what waits is held until as many wait as there were answered and waiting then (or fill a batch), or until
round trips to the bus show that nobody comes: TRIPS_QUIET of them in a row that brought nothing, or TRIPS_MAX in all.
A caller's way is longer than a trip: out to it, and back; and the first trip may overtake the answers. However slow the
trips are, a hold ends after SHARE of what the batch before it took.

* One caller alone is never held: it is all that is expected, and no trip is made.
* Nobody is held for callers who do not come: where fewer than half of them did, the next times are skipped, one at
  first and twice as many each time, up to SKIPS_MAX; when they come again, none.
* A bus that is slow beside the model is not waited for: a hold that lasted SHARE counts as callers who did not come.

It is told what happens and holds nothing of what it decides about.
"""

from __future__ import annotations

TRIPS_QUIET = 6
TRIPS_MAX = 32
SHARE = 0.2
SKIPS_MAX = 64


class Gathering:
    """For one model: `done` when a batch was answered, `trip` after each round trip, `over` when the hold ends."""

    def __init__(self) -> None:
        self.expected = 1
        self._awaited = 0
        self._before = 0
        self._trips = 0
        self._quiet = 0
        self._skips = 0
        self._skips_left = 0

    def done(self, answered: int, waiting: int, most: int) -> bool:
        """So many were just answered, so many wait, `most` fill a batch. Whether to hold, for `expected` to wait."""
        self.expected = min(answered + waiting, most)
        self._awaited = self.expected - waiting
        self._before, self._trips, self._quiet = waiting, 0, 0
        if self._awaited <= 0 or self.expected == 1:
            return False
        if self._skips_left:
            self._skips_left -= 1
            return False
        return True

    def trip(self, waiting: int) -> bool:
        """A round trip to the bus was made and so many wait. Whether to make another."""
        self._trips += 1
        self._quiet = self._quiet + 1 if waiting <= self._before else 0
        self._before = waiting
        return waiting < self.expected and self._quiet < TRIPS_QUIET and self._trips < TRIPS_MAX

    def over(self, waiting: int, share: float) -> None:
        """The hold ended with so many waiting, and took this share of the batch before it."""
        missing = self.expected - waiting
        if missing * 2 <= self._awaited and share < SHARE:
            self._skips = 0
        else:
            self._skips = min(max(self._skips * 2, 1), SKIPS_MAX)
        self._skips_left = self._skips
