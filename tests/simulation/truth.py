"""The truth of one story, for its checkers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from domain.folding.states import State
from tests.simulation.checkers.truth import Active
from tests.simulation.coverage import Coverage
from tests.simulation.injection import Injector
from tests.simulation.loop import SimLoop
from tests.simulation.machine import Host
from tests.simulation.plane import Plane


class StoryTruth:
    """As checkers.truth.Truth. Plane and injector come later: the plane's processes are watched from their start."""

    plane: Plane
    injector: Injector

    def __init__(self, loop: SimLoop, host: Host, coverage: Coverage) -> None:
        self.now_s = loop.time
        self._coverage = coverage
        self.ended_at_s = host.ended_at_s
        self._host = host

    def sessions(self) -> Iterable[tuple[str, Any]]:
        return self.plane.sessions()

    def active(self) -> Active | None:
        return self.plane.active()

    def memory(self) -> Mapping[str, State | None] | None:
        return self.plane.memory()

    def readings(self) -> Iterable[tuple[float, int | None, int | None]]:
        return self._host.device.readings

    def is_attributed(self) -> bool:
        return not self._host.scenario.contained

    def out_of_memory(self) -> Sequence[tuple[object, float, float]]:
        return self._host.short

    def taken(self) -> Iterable[tuple[float, object, int]]:
        return self._host.device.taken

    def cover(self, what: str, count: int) -> None:
        self._coverage[what] += count

    def is_quiet(self) -> bool:
        return self.injector.is_quiet()
