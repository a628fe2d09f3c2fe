"""The control plane's clock and its source of ids. The only clock that counts for leases and sessions.

Wall time is read once; from then on CLOCK_BOOTTIME carries it, so that a jump of the system's clock cannot end or
stretch a lease while the process lives, and a machine that was suspended counts the time it slept. (CLOCK_MONOTONIC,
which asyncio's loops count by, stands still meanwhile: others may have taken over, and it would not show.)
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the epoch; never goes back within one process."""

    def not_before(self, at_ms: int) -> None:
        """Go on from `at_ms` where the clock is behind it."""

    def elapsed_s(self) -> float:
        """Seconds since some moment; never jumps, and goes on while the machine is suspended."""


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SystemClock:
    def __init__(self, source_ns: Callable[[], int] = boot_ns) -> None:
        self._source_ns = source_ns
        self._offset_ns = time.time_ns() - source_ns()

    def now_ms(self) -> int:
        return (self._offset_ns + self._source_ns()) // 1_000_000

    def not_before(self, at_ms: int) -> None:
        self._offset_ns = max(self._offset_ns, at_ms * 1_000_000 - self._source_ns())

    def elapsed_s(self) -> float:
        return self._source_ns() / 1e9


class RandomIds:
    """Ids of 128 and secrets of 256 random bits."""

    def token(self) -> str:
        return secrets.token_hex(16)

    def secret(self) -> str:
        return secrets.token_urlsafe(32)
