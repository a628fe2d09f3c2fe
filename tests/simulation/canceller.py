"""Somebody who cancels work at each of its stages: waits until some work is at one, then cancels it."""

from __future__ import annotations

import asyncio
import contextlib
import random

from schemas.work import Stage
from tests.simulation.asking import Asker
from tests.simulation.watch import Watch

STAGES: tuple[Stage, ...] = ("queued", "preparing", "loading", "healthchecking", "ready", "unloading", "completed")
WATCHES_S = 6.0  # for work at one stage, before another is chosen
PAUSE_S = (0.5, 8.0)


class Canceller:
    def __init__(self, asker: Asker, watch: Watch, rng: random.Random) -> None:
        self._asker, self._watch, self._rng = asker, watch, rng
        self.rest = asyncio.Event()

    async def go(self) -> None:
        while not self.rest.is_set():
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
            await self._cancel_at(self._rng.choice(STAGES))

    async def _cancel_at(self, stage: Stage) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCHES_S):
                while not (there := [work for work in self._watch.works() if work.stage == stage]):
                    if self.rest.is_set():
                        return
                    await self._watch.moved.wait()
                found = self._rng.choice(there)
                await self._asker.command("work.cancel", work_id=found.work_id)
                self._watch.coverage[f"cancel asked of {found.kind} in {stage}"] += 1
