"""The worker's two clocks.

Terms are counted on `local_ms`: it never jumps, and it goes on while the machine is suspended (which
CLOCK_MONOTONIC doesn't), so a worker that wakes up knows that its terms have ended. `epoch_ms` only tells
people when something was seen; nothing is decided by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_source: Callable[[], float] = _boot_s


def local_ms() -> float:
    return _source() * 1_000.0


def epoch_ms() -> int:
    return time.time_ns() // 1_000_000


def count_by(source: Callable[[], float]) -> Callable[[], float]:
    """Count terms by another clock, in seconds; gives the one before. For simulated time."""
    global _source
    before, _source = _source, source
    return before
