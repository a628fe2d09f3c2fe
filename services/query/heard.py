"""When each node's worker was last heard: the pseudo-table `silence`, so that silence is told from its first second.

The query service listens to the heartbeats on their way to the control plane and remembers the newest of each node's
newest generation. It answers nothing and decides nothing: whether a session is over is the log's to say, and what a
worker holds is the worker's. It lives in memory alone: after a start there is no row for a node until it is heard.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas import subjects
from schemas.live import Beat
from schemas.queries import Query, QueryReply

SILENCE = "silence"
NODES_MAX = 10_000  # the one heard longest ago is forgotten beyond that

log = structlog.get_logger()
_decode = msgspec.json.Decoder(Beat).decode


class Last(NamedTuple):
    generation: str
    at_s: float


class Heard:
    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._last: OrderedDict[str, Last] = OrderedDict()

    async def listen(self, nc: Client) -> None:
        await nc.subscribe(f"{subjects.BEAT}.*", cb=self._on_beat)

    async def _on_beat(self, message: Msg) -> None:
        try:
            self.note(_decode(message.data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.warning("beat.malformed", subject=message.subject, error=str(error))

    def note(self, beat: Beat) -> None:
        """Take in a heartbeat; one of an older generation is not the owner's word."""
        known = self._last.get(beat.node_id)
        if known is not None and int(beat.generation) < int(known.generation):
            return
        self._last[beat.node_id] = Last(beat.generation, self._now_s())
        self._last.move_to_end(beat.node_id)
        if len(self._last) > NODES_MAX:
            self._last.popitem(last=False)

    def answer(self, query: Query) -> QueryReply:
        """Rows of (id: the node, generation, silent_ms), in the order of their id."""
        now_s = self._now_s()
        rows = [
            {"id": node_id, "generation": last.generation, "silent_ms": round((now_s - last.at_s) * 1_000)}
            for node_id, last in sorted(self._last.items())
            if query.id in (None, node_id) and (query.after is None or node_id > query.after)
        ]
        return QueryReply(list(rows[: query.limit]), more=len(rows) > query.limit)
