"""The writer's memory: every stream it needs, folded, and the fleet index over all of them.

Filled by one replay of the log at start. A stream that was dropped to keep the memory bounded is read
again when a decision, or the replay itself, comes to it. After an append that failed, the streams it
touched are read again, because what was folded ahead of the commit may not have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from domain.deciding.world import Ids, Limits, World
from domain.folding.fleet import Fleet
from domain.folding.fold import fold
from domain.folding.states import State
from schemas.events import decode_event
from services.eventlog.port import EventLog, LogRow

REPLAY_ROWS = 5_000  # rows per read
STREAMS_MAX = 500_000  # folded streams kept in memory


class Folded:
    def __init__(self, log: EventLog, ids: Ids, limits: Limits) -> None:
        self.log = log
        self.world = World(Fleet(), ids, limits)
        self.position = 0
        self.stale = 0  # events in the log that did not count
        self.newest_ms = 0  # the latest time any event was decided at
        self.world.complete = True  # until `trim` drops a stream

    async def replay(self, progress: Callable[[int], None] = lambda position: None) -> int:
        """Fold the whole log from where we are; the number of events read."""
        read = 0
        while True:
            rows = await self.log.read(self.position, REPLAY_ROWS)
            if not rows:
                return read
            await self._load_trimmed(rows)
            for row in rows:
                self._take(row)
            self.position = rows[-1].position
            read += len(rows)
            progress(self.position)
            self.trim()

    async def _load_trimmed(self, rows: list[LogRow]) -> None:
        """Before going on with a stream that `trim` dropped: what was folded of it so far."""
        begin = {row.stream for row in rows if row.version == 1}
        dropped = {row.stream for row in rows if row.stream not in self.world.states} - begin
        for row in await self.log.read_streams(sorted(dropped), up_to=self.position) if dropped else ():
            self.world.states[row.stream], _ = fold(
                self.world.states.get(row.stream), decode_event(row.topic, row.state)
            )
            self.world.versions[row.stream] = row.version

    async def load(self, streams: Iterable[str]) -> None:
        """Fold these streams from the log, whatever was known of them."""
        wanted = sorted(set(streams))
        if not wanted:
            return
        rows = await self.log.read_streams(wanted)
        known = {stream: self.world.states.get(stream) for stream in wanted}
        fresh: dict[str, State | None] = dict.fromkeys(wanted)
        versions = dict.fromkeys(wanted, 0)
        for row in rows:
            fresh[row.stream], _ = fold(fresh[row.stream], decode_event(row.topic, row.state))
            versions[row.stream] = row.version
        for stream in wanted:
            self.world.states[stream] = fresh[stream]
            self.world.versions[stream] = versions[stream]
            self.world.fleet.note(known[stream], fresh[stream])

    def missing(self, streams: Iterable[str]) -> list[str]:
        """Those that have to be read before a decision may look at them."""
        return [] if self.world.complete else [stream for stream in streams if stream not in self.world.states]

    def trim(self) -> None:
        """Forget the streams taken in longest ago, beyond the bound. The fleet index keeps what it needs."""
        surplus = len(self.world.states) - STREAMS_MAX
        if surplus <= 0:
            return
        self.world.complete = False
        for stream in list(self.world.states)[:surplus]:
            del self.world.states[stream]
            self.world.versions.pop(stream, None)

    def _take(self, row: LogRow) -> None:
        world = self.world
        before, event = world.states.get(row.stream), decode_event(row.topic, row.state)
        after, reason = fold(before, event)
        self.newest_ms = max(self.newest_ms, event.at_ms)
        world.states[row.stream] = after
        world.versions[row.stream] = row.version
        if reason is not None:
            self.stale += 1
        else:
            world.fleet.note(before, after)
