"""Where deployments are served, remembered for a moment: the tables need not be asked for each invocation.

What is remembered is a node and a generation to ask, never an answer: the worker decides whether it holds the
deployment. It is at most TARGETS_SECONDS_MAX old, of TARGETS_MAX deployments, and forgotten with any refusal.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from schemas.codes import Refusal
from services.client.invoking import Targets

TARGETS_SECONDS_MAX = 5.0
TARGETS_MAX = 256

Key = tuple[str, str | None]  # deployment and the node that is wanted, if one is


class KnownTargets:
    """Of one client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Key, tuple[float, Targets]] = {}

    def put(self, key: Key, targets: Targets) -> None:
        if len(self._known) >= TARGETS_MAX:
            self._known.clear()
        self._known[key] = self._clock(), targets

    @contextlib.contextmanager
    def of(self, key: Key) -> Iterator[Targets]:
        """Empty where they are not known. A refusal inside forgets them."""
        at, targets = self._known.get(key, (0.0, ()))
        try:
            yield targets if self._clock() - at < TARGETS_SECONDS_MAX else ()
        except Refusal:
            self._known.pop(key, None)
            raise
