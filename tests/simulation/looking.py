"""Looking at what is loaded now, as `tenure ps` does: from the tables, and from what the worker answers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import msgspec
import nats.errors

from schemas import subjects
from schemas.live import LiveAnswer
from services.client.live import Holding, holding
from tests.simulation.asking import REQUEST_S
from tests.simulation.plane import NODE
from tests.simulation.storage import Disk
from tests.simulation.watch import Watch

LOOK_AFTER_S = 0.4  # at most, when the node's owner has changed
LOOKS = 2


class Looker:
    def __init__(self, client: Any, watch: Watch, disk: Disk) -> None:
        self._nc, self._watch, self._disk = client, watch, disk

    async def at(self, deployment: str) -> Holding | None:
        """What may be said of the deployment now, None where the tables do not have it yet."""
        tables, position, asked_s = self._disk.tables, self._disk.tracked, asyncio.get_running_loop().time()
        deployed: Any = tables.get(("deployment", deployment))
        node: Any = tables.get(("node", NODE))
        residency: Any = tables.get(("residency", f"{deployment}.{NODE}"))
        if deployed is None:
            return None
        answer = await self.worker()
        told = holding(deployed, NODE, node, residency, answer, 0)
        self._watch.told(told, answer, position, asked_s)
        return told

    async def worker(self) -> LiveAnswer | None:
        """The first worker that answers; two may, while one succeeds the other."""
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            answer = await self._nc.request(subjects.live_subject(NODE), b"", timeout=REQUEST_S)
            return msgspec.json.decode(answer.data, type=LiveAnswer)
        return None


class Onlooker:
    """Somebody who looks whenever the node's owner changes: then the answers of two may be mixed up."""

    def __init__(self, looker: Looker, watch: Watch, rng: random.Random) -> None:
        self._looker, self._watch, self._rng = looker, watch, rng

    async def go(self) -> None:
        """Until the story ends."""
        while True:
            await self._watch.owner_changed.wait()
            for _ in range(LOOKS):
                await asyncio.sleep(self._rng.uniform(0.0, LOOK_AFTER_S))
                for table, ident in list(self._looker._disk.tables):
                    if table == "deployment":
                        await self._looker.at(ident)
