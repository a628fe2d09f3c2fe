"""The control plane's clock and its source of ids. The only clock that counts for leases and sessions.

Wall time is read once; from then on the monotonic clock carries it, so that a jump of the system's clock
cannot end or stretch a lease while the process lives.
"""

from __future__ import annotations

import secrets
import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the epoch; never goes back within one process."""

    def not_before(self, at_ms: int) -> None:
        """Go on from `at_ms` where the clock is behind it."""


class SystemClock:
    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        return (self._offset_ns + time.monotonic_ns()) // 1_000_000

    def not_before(self, at_ms: int) -> None:
        self._offset_ns = max(self._offset_ns, at_ms * 1_000_000 - time.monotonic_ns())


class RandomIds:
    """Ids of 128 and secrets of 256 random bits."""

    def token(self) -> str:
        return secrets.token_hex(16)

    def secret(self) -> str:
        return secrets.token_urlsafe(32)
