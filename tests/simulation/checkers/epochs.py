"""One writer at a time: each append is by the newest epoch, and versions and positions follow one another."""

from __future__ import annotations

from schemas import events as ev
from services.eventlog.port import LogRow
from tests.simulation.checkers import Checker, Violation


class Epochs(Checker):
    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._position = 0

    def see(self, row: LogRow, event: ev.Event) -> None:
        if row.position <= self._position or row.version != self._versions.get(row.stream, 0) + 1:
            raise Violation(f"position {row.position}, {row.stream} version {row.version} does not follow")
        self._position = row.position
        self._versions[row.stream] = row.version

    def appended(self, epoch: int, newest: int) -> None:
        """Of an append that went through."""
        if epoch != newest:
            raise Violation(f"epoch {epoch} appended after epoch {newest} was taken")
