"""After a commit: wake the tailing readers and offer the work that became claimable.

Both are hints. A reader that misses the wake-up polls; a worker that misses an offer gets it with its
next heartbeat. So neither is waited for, and a failure here is logged and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client

from domain.deciding.settle import Change
from domain.folding.states import WorkState
from schemas import subjects
from schemas.events import LeaseEnded, WorkRequested
from schemas.work import Offer

log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode


class Announcer:
    def __init__(self, nc: Client) -> None:
        self._nc = nc

    async def __call__(self, changes: Sequence[Change], position: int) -> None:
        try:
            await self._nc.publish(subjects.WAKE, str(position).encode())
            for change in changes:
                if isinstance(change.event, WorkRequested | LeaseEnded):
                    await self._offer(change.after)
        except (nats.errors.Error, OSError) as error:
            log.warning("announce.failed", position=position, error=repr(error))

    async def _offer(self, work: object) -> None:
        if not isinstance(work, WorkState) or work.ended or work.lease is not None:
            return
        offer = Offer(work.work_id, work.node_id, work.kind, work.attempt + 1)
        await self._nc.publish(subjects.work_subject(work.node_id, work.work_id), _encode(offer))
