"""What is really so on the simulated machines: the checkers' second source beside the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from domain.folding.states import State


class Active(NamedTuple):
    """The active control plane: who it is, and its clock now."""

    epoch: int
    now_ms: int


class Truth(Protocol):
    def now_s(self) -> float:
        """The simulation's time, which no fault changes."""

    def sessions(self) -> Iterable[tuple[str, Any]]:
        """Node and live Session object of every worker process that was not killed."""

    def ended_at_s(self, pid: int) -> float | None:
        """When the model process with this pid ended, None while it lives."""

    def active(self) -> Active | None:
        """The active control plane, None while there is none, it cannot reach the log, or for a term not the bus."""

    def memory(self) -> Mapping[str, State | None] | None:
        """What the active control plane's writer knows of each stream; None where there is none."""

    def readings(self) -> Iterable[tuple[float, int | None, int | None]]:
        """The latest that a driver told of the node's device: when, total and used bytes; None for not measured."""

    def is_attributed(self) -> bool:
        """Whether the driver tells whose the device's memory is."""

    def out_of_memory(self) -> Sequence[tuple[object, float, float]]:
        """Model processes that got no device memory: of which worker, spawned when, ended when."""

    def taken(self) -> Iterable[tuple[float, object, int]]:
        """All device memory that was taken: when, by which worker's model process, and how much."""

    def cover(self, what: str, count: int) -> None:
        """That a checker had something to look at."""

    def is_quiet(self) -> bool:
        """Whether no fault has been at work for so long that none can still have an effect."""
