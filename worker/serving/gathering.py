"""Whether to wait a moment before the next batch, so that those who were just answered can be part of it.

Most callers are loops: answered, they ask again at once. Without a wait they fall into two groups that take turns, each
computed while the other's answers travel, in batches of half the size that could be. So when a batch is done, what
waits is held back until as many wait as there were answered and waiting then, or fill a batch; but for no longer than
SHARE of what the last batch took, and SECONDS_MAX.

* One caller alone is never held back: it is all that is expected.
* Nobody is held back for callers who do not come: when fewer than half of them did, the next times are skipped, one at
  first and twice as many each time, up to SKIPS_MAX; when they come again, none.

It reads no clock and holds nothing of what it decides about.
"""

from __future__ import annotations

SHARE = 0.125
SECONDS_MAX = 0.010
SKIPS_MAX = 64


class Gathering:
    """For one model: `done` when a batch was answered, `seconds` before the next, `held` after a wait."""

    def __init__(self) -> None:
        self.expected = 0
        self._awaited = 0
        self._until = 0.0
        self._skips = 0
        self._skips_left = 0

    def done(self, now: float, took_s: float, answered: int, waiting: int, most: int) -> None:
        """So many were answered after this batch took `took_s`, so many wait; `most` fill a batch."""
        self.expected = min(answered + waiting, most)
        self._awaited = self.expected - waiting
        self._until = now
        if self._skips_left:
            self._skips_left -= 1
        else:
            self._until += min(took_s * SHARE, SECONDS_MAX)

    def seconds(self, now: float, waiting: int) -> float:
        """How long the `waiting` are to be held back from now on; 0 where they go at once."""
        return 0.0 if waiting >= self.expected else max(self._until - now, 0.0)

    def held(self, waiting: int) -> None:
        """The wait is over, and so many wait now. One for nothing teaches."""
        missing = self.expected - waiting
        if missing * 2 <= self._awaited:
            self._skips = 0
        else:
            self._skips = min(max(self._skips * 2, 1), SKIPS_MAX)
        self._skips_left = self._skips
