"""How much evidence with an invalid signature is kept in the log: so much of each node and minute, and no more.

Rejected evidence is kept whole, because an auditor may want to see it. But whoever can send on the evidence subjects
of a node without its session key could fill the log in this way. So of each node at most INVALID_MAX pieces and
INVALID_BYTES_MAX bytes are decided within WINDOW_S seconds. What is beyond is taken out of the stream, counted, and
told with one log line for each node and window. Nothing that was signed rightly is ever counted here or held up.

A worker whose signatures are wrong by mistake sends the same pieces again, so they get their turn in later windows.
All senders in the name of nodes that are not enrolled share one account.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog
from msgspec import Struct

WINDOW_S = 60.0
INVALID_MAX = 10
INVALID_BYTES_MAX = 256_000

log = structlog.get_logger()


class _Window(Struct):
    since_s: float
    kept: int = 0
    kept_bytes: int = 0
    dropped: int = 0
    dropped_bytes: int = 0


class InvalidEvidence:
    """`known` holds the ids of the nodes that there are; `now_s` never goes back."""

    def __init__(self, known: Collection[str], now_s: Callable[[], float]) -> None:
        self._known = known
        self._now_s = now_s
        self._windows: dict[str | None, _Window] = {}

    def admit(self, node_id: str, size: int) -> bool:
        """Whether this piece, of so many bytes, is still within its node's bounds; counts it either way."""
        self.tell()
        account = node_id if node_id in self._known else None
        window = self._windows.setdefault(account, _Window(self._now_s()))
        if window.kept < INVALID_MAX and window.kept_bytes + size <= INVALID_BYTES_MAX:
            window.kept += 1
            window.kept_bytes += size
            return True
        window.dropped += 1
        window.dropped_bytes += size
        return False

    def tell(self) -> None:
        """Close the windows that are over, with a line for each in which something was dropped."""
        now_s = self._now_s()
        for account in [name for name, window in self._windows.items() if now_s - window.since_s >= WINDOW_S]:
            window = self._windows.pop(account)
            if window.dropped:
                log.warning(
                    "evidence.invalid_beyond_bound", node_id=account, kept=window.kept, dropped=window.dropped,
                    dropped_bytes=window.dropped_bytes, window_s=WINDOW_S,
                )  # fmt: skip
