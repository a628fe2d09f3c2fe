"""4, with the self-stop: `loaded` is said only on the current owner's word, and an owner that is over says nothing.

* A generation that the log called lost for silence had stopped itself before, and stays stopped.
* A generation that was succeeded while it lived stops within one term: its next heartbeat tells it, or its term ends.
* An answer `loaded` names a generation that was the node's newest in the tables that were asked, serving, with a model
  process that lived when it was asked or later. Silence is `unknown`.
"""

from __future__ import annotations

from schemas import events as ev
from schemas.codes import Code
from schemas.live import LiveAnswer
from services.client.live import Holding
from services.eventlog.port import LogRow
from tests.simulation.checkers import Checker, Violation
from tests.simulation.checkers.truth import Truth


class Owners(Checker):
    def __init__(self, truth: Truth, session_ms: int) -> None:
        self._truth = truth
        self._session_s = session_ms / 1_000
        self._silent: set[tuple[str, str]] = set()  # node and generation, called lost for silence
        self._succeeded_s: dict[tuple[str, str], float] = {}  # when its successor was let in
        self._registered: dict[str, list[tuple[int, str]]] = {}  # node -> position and generation

    def see(self, row: LogRow, event: ev.Event) -> None:
        if isinstance(event, ev.SessionLost) and event.cause == Code.WORKER_LOST:
            self._silent.add((event.node_id, event.generation))
        elif isinstance(event, ev.WorkerRegistered):
            known = self._registered.setdefault(event.node_id, [])
            if known:
                self._succeeded_s.setdefault((event.node_id, known[-1][1]), self._truth.now_s())
            known.append((row.position, event.generation))

    def step(self) -> None:
        for node_id, session in self._truth.sessions():
            owner = (node_id, session.generation)
            if not session.is_valid():
                continue
            if owner in self._silent:
                raise Violation(f"generation {session.generation} of {node_id} was called lost and still serves")
            since_s = self._succeeded_s.get(owner, self._truth.now_s())
            if self._truth.now_s() - since_s > self._session_s:
                raise Violation(f"generation {session.generation} of {node_id} serves a term after its successor began")

    def told(self, told: Holding, answer: LiveAnswer | None, position: int, asked_s: float) -> None:
        """Somebody asked what is resident: with tables at `position`, and this answer of a worker, if any."""
        if answer is None:
            if told.state != "unknown":
                raise Violation(f"{told.deployment_id} was called {told.state}, and no worker had answered")
            return
        if told.state != "loaded":
            return
        newest = [generation for at, generation in self._registered.get(told.node_id, []) if at <= position]
        if not newest or told.generation is None or int(told.generation) < int(newest[-1]):
            raise Violation(
                f"{told.deployment_id} was called loaded by generation {told.generation}, not {newest[-1:]}"
            )
        held = [each for each in answer.residents if each.entry.deployment_id == told.deployment_id]
        if not answer.serving or [each.entry.generation for each in held] != [told.generation]:
            raise Violation(f"{told.deployment_id} was called loaded, and its worker did not say so")
        if told.since_ms is None:
            raise Violation(f"{told.deployment_id} was called loaded without its age")
        ended_s = self._truth.ended_at_s(held[0].child_pid)
        if ended_s is not None and ended_s < asked_s:
            raise Violation(f"{told.deployment_id} was called loaded, and its model process had ended before")
