"""Worker sessions and everything else that ends by the clock.

A session is renewed by heartbeats, in this process's memory; only its loss is an event. After a start of
the control plane every session that the log calls alive has one full term from now: nothing is granted
anew until a loss is in the log, so waiting is safe. `due` says which commands time has made necessary.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from domain.deciding.world import Ids, Limits
from domain.folding.fleet import Fleet
from domain.folding.states import NodeState, stream_of
from domain.inventory import agrees, known, unwanted
from schemas.commands import Command, ExpireLease, LoseSession, PassDeadline, ReconcileInventory
from schemas.live import Beat, BeatReply, LiveAnswer
from schemas.work import Offer
from services.clock import Clock

ACTOR = "control"
OFFERS_PER_BEAT_MAX = 64
DIFFERS_BEATS = 5  # evidence on its way explains a difference for a beat or two


class Term(NamedTuple):
    """`since_ms` tells two registrations of one generation number apart: the first may not have been committed."""

    generation: str
    since_ms: int
    renewed_ms: int
    inventory_digest: str


class Sessions:
    def __init__(self, fleet: Fleet, limits: Limits, clock: Clock, ids: Ids) -> None:
        self._fleet = fleet
        self._limits = limits
        self._clock = clock
        self._ids = ids
        self._terms: dict[str, Term] = {}
        self._differs_since_ms: dict[str, int] = {}
        self._unwanted: dict[str, list[str]] = {}

    def beat(self, beat: Beat, confirmed: list[str], ahead: Set[str] = frozenset()) -> BeatReply | None:
        """Renew the sender's session and tell it what it should know; `fenced` for any but the live generation.

        `ahead` are streams whose state is not in the log yet and may never be. Nobody is told to stop because of it:
        there is no answer where it is the node's own, and its next heartbeat gets one.
        """
        if stream_of("node", beat.node_id) in ahead:
            return None
        node = self._fleet.nodes.get(beat.node_id)
        if node is None or not node.enabled or (node.session, node.generation) != ("alive", beat.generation):
            return BeatReply(True, self._limits.session_ms, self._limits.beat_ms, confirmed, [], [])
        self._terms[beat.node_id] = Term(
            beat.generation, node.changed_at_ms, self._clock.now_ms(), beat.inventory_digest
        )
        if agrees(node, self._fleet, beat.inventory_digest):
            self._differs_since_ms.pop(beat.node_id, None)
            self._unwanted.pop(beat.node_id, None)
        else:
            self._differs_since_ms.setdefault(beat.node_id, self._clock.now_ms())
        work = self._fleet.work_of(beat.node_id)
        offers = [
            Offer(item.work_id, item.node_id, item.kind, item.attempt + 1) for item in work if item.lease is None
        ][:OFFERS_PER_BEAT_MAX]
        cancelled = [
            item.work_id
            for item in work
            if item.lease is not None and item.cancel_requested and stream_of("work", item.work_id) not in ahead
        ]
        ending = self._unwanted.pop(beat.node_id, [])
        if ending:  # somebody may have asked for one since
            wanted = known(node, self._fleet)
            ending = [held for held in ending if held not in wanted and stream_of("deployment", held) not in ahead]
        return BeatReply(
            False, self._limits.session_ms, self._limits.beat_ms, confirmed, offers, cancelled, ending,
            device_reserve_bytes=self._limits.device_reserve_bytes,
        )  # fmt: skip

    def differing(self) -> list[NodeState]:
        """Nodes whose inventory has not been what the log says for DIFFERS_BEATS heartbeats."""
        until_ms = self._clock.now_ms() - DIFFERS_BEATS * self._limits.beat_ms
        nodes = self._fleet.alive
        return [
            nodes[name] for name, since_ms in self._differs_since_ms.items() if since_ms < until_ms and name in nodes
        ]

    def compare(self, answer: LiveAnswer) -> ReconcileInventory | None:
        """From what a worker says it holds: the command that corrects the log, if the answer counts.

        What it holds without the log's knowledge it is told to end, with its next heartbeat.
        """
        node = self._fleet.alive.get(answer.node_id)
        if node is None or node.generation != answer.generation or not answer.serving:
            return None
        inventory = [resident.entry for resident in answer.residents]
        self._unwanted[node.node_id] = unwanted(node, self._fleet, inventory)
        self._differs_since_ms.pop(node.node_id, None)
        return ReconcileInventory(
            command_id=self._ids.token(), actor=ACTOR, node_id=node.node_id, generation=node.generation,
            inventory=inventory,
        )  # fmt: skip

    def due(self) -> list[Command]:
        """Commands for what has run out: sessions, leases, deadlines."""
        now_ms = self._clock.now_ms()
        commands: list[Command] = []
        for gone in self._terms.keys() - self._fleet.alive.keys():
            del self._terms[gone]
        for node in self._fleet.alive.values():
            term = self._terms.get(node.node_id)
            if term is None or (term.generation, term.since_ms) != (node.generation, node.changed_at_ms):
                self._terms[node.node_id] = term = Term(node.generation, node.changed_at_ms, now_ms, "")
            silent_ms = now_ms - term.renewed_ms
            if silent_ms > self._limits.session_ms:
                commands.append(
                    LoseSession(
                        command_id=self._ids.token(), actor=ACTOR, node_id=node.node_id, generation=node.generation,
                        silent_ms=silent_ms,
                    )
                )  # fmt: skip
        for work in self._fleet.open_work.values():
            if work.lease is not None and now_ms > work.lease.until_ms:
                commands.append(
                    ExpireLease(
                        command_id=self._ids.token(), actor=ACTOR, work_id=work.work_id, attempt=work.lease.attempt
                    )
                )
            elif now_ms > work.deadline_ms:
                commands.append(PassDeadline(command_id=self._ids.token(), actor=ACTOR, work_id=work.work_id))
        return commands
