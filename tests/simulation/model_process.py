"""A simulated model process: answers as one does, after a while, and ends in whichever way the machine has it."""

from __future__ import annotations

import asyncio
import contextvars
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.codes import Code, Refusal
from schemas.evidence import Attempt, Health, OfflineProof
from tests.simulation.loop import PROCESS
from worker.launch.processes import Identity
from worker.memory.allocator import AllocatorReading
from worker.model import frames
from worker.model.child import Exit

if TYPE_CHECKING:
    from tests.simulation.machine import Host

MB = 1_000_000
WEIGHTS_BYTES = 100 * MB
CONTEXT_BYTES = 20 * MB  # the driver's, in no allocator's count
INFERENCE_BYTES = 15 * MB  # taken with the first inference, and kept
START_S, SLOW_START_S = (0.3, 3.0), (4.0, 15.0)
SLOW_SHARE = 0.15
ANSWER_S = (0.001, 0.05)
HEALTH_S = (0.001, 0.3)
NO_ALLOCATOR = AllocatorReading(unavailable="simulated")


class SimModelProcess:
    """As worker.model.child.ModelProcess."""

    way = "fresh"

    def __init__(self, host: Host) -> None:
        self.host = host
        self.parent = PROCESS.get()
        self.identity = Identity(next(host.pids), 0)
        self.scratch = Path("/nowhere")
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.spawned_s = host.loop.time()
        self._asked = False
        self._on_device = False
        self._allocated = 0
        host.alive[self.identity.pid] = self

    async def ask(self, request: frames.Request, timeout_ms: float) -> frames.Answer:
        hangs = self.host.rng.random() < self.host.hangs
        async with asyncio.timeout(timeout_ms / 1_000):
            if hangs:
                await asyncio.shield(self.exited)
            else:
                await asyncio.wait([self.exited], timeout=self._takes_s(request))
        if self.exited.done():
            ended = self.exited.result()
            raise Refusal(ended.code, ended.message)
        return self._answer(request)

    def _takes_s(self, request: frames.Request) -> float:
        rng = self.host.rng
        if isinstance(request, frames.Start):
            slow = self.host.slow_loads or rng.random() < SLOW_SHARE
            return rng.uniform(*(SLOW_START_S if slow else START_S))
        return rng.uniform(*(HEALTH_S if isinstance(request, frames.CheckHealth) else ANSWER_S))

    def _answer(self, request: frames.Request) -> frames.Answer:
        match request:
            case frames.Confine():
                return frames.Confined(OfflineProof(["simulated"], [], [Attempt("connect", True, "refused")], True))
            case frames.Prepare():
                self._on_device = request.profile.device == "cuda"
                return frames.Prepared({}, self._allocator())
            case frames.Start():
                if self.host.rng.random() < self.host.load_failures:
                    self._refuse(Code.LOAD_FAILED, "simulated: the runtime refused the files")
                self._take(CONTEXT_BYTES, WEIGHTS_BYTES)
                return frames.Facts(3, 256, 1_000)
            case frames.CheckHealth():
                if self._allocated == WEIGHTS_BYTES:
                    self._take(0, INFERENCE_BYTES)
                health = Health(True, True, True, True, 1.0, "ab" * 32, 3)
                return frames.HealthSeen(health, self._allocator())
            case frames.Unload():
                self.host.loop.call_later(0.02, self.end, 0, context=contextvars.Context())
                return frames.UnloadedModel(self._allocator(), NO_ALLOCATOR)
            case _:
                raise NotImplementedError(f"no story asks for {type(request).__name__}")

    def _take(self, context: int, allocated: int) -> None:
        """Memory of the device, or the end by the runtime's out-of-memory error."""
        if not self._on_device:
            return
        if not self.host.device.take(self.identity.pid, self.parent, context + allocated):
            self.host.out_of_memory(self)
            self._refuse(Code.OUT_OF_MEMORY, "simulated: out of device memory")
        self._allocated += allocated

    def _refuse(self, code: Code, message: str) -> None:
        self.end(1)
        raise Refusal(code, message)

    def _allocator(self) -> AllocatorReading:
        if not self._on_device:
            return NO_ALLOCATOR
        return AllocatorReading(self._allocated, self._allocated, self._allocated)

    def end(self, exit_code: int) -> None:
        self.host.gone(self.identity.pid)
        if not self.exited.done():
            self.exited.set_result(Exit(exit_code, self._asked))

    def expect_exit(self) -> None:
        self._asked = True

    async def wait_exit(self, timeout_ms: float) -> Exit:
        async with asyncio.timeout(timeout_ms / 1_000):
            return await asyncio.shield(self.exited)

    async def kill(self) -> Exit:
        self.expect_exit()
        self.end(-9)
        return await asyncio.shield(self.exited)
