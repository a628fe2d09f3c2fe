"""4 and the self-stop: when the log calls a session lost for silence, its worker has stopped itself already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from schemas import events as ev
from schemas.codes import Code
from services.eventlog.port import LogRow
from tests.simulation.checkers import Violation

Sessions = Callable[[], Iterable[tuple[str, Any]]]


class Owners:
    """`sessions` gives (node, live Session object) of every worker process that has not been killed."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def see(self, row: LogRow, event: ev.Event) -> None:
        if not isinstance(event, ev.SessionLost) or event.cause != Code.WORKER_LOST:
            return
        for node_id, session in self._sessions():
            if node_id == event.node_id and session.generation == event.generation and session.is_valid():
                raise Violation(f"generation {event.generation} of {node_id} was called lost and still serves")
