"""The worker's two clocks.

Terms are counted on `local_ms`: it never jumps, and it goes on while the machine is suspended (which
CLOCK_MONOTONIC doesn't), so a worker that wakes up knows that its terms have ended. `epoch_ms` only tells
people when something was seen; nothing is decided by it.
"""

from __future__ import annotations

import time


def local_ms() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1_000.0


def epoch_ms() -> int:
    return time.time_ns() // 1_000_000
