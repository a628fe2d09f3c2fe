"""The machine under a simulated worker: model processes, files and memory, in place of the operating system's.

Everything above it is the production worker: agent, session, leases, dispatcher, outbox, residents, intake and
the loading steps. What is replaced is listed in SEAMS and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from schemas.codes import Code, Refusal
from schemas.environments import Device, RuntimeEnvironment
from schemas.evidence import Attempt, Health, OfflineProof, Reading
from tests.simulation.loop import PROCESS, Process, SimLoop
from worker import artifacts, clock
from worker.adapters.contract import Inspection
from worker.model import frames
from worker.model.allocator import AllocatorReading
from worker.model.cgroup import HostMemory
from worker.model.child import Exit
from worker.model.processes import Identity

ENVIRONMENT = RuntimeEnvironment(
    python="3.11", platform="simulated", worker="0", packages={}, adapters={"sentence_transformers": "1"},
    devices=[Device(kind="cpu", index=0, name="simulated")],
)  # fmt: skip
SIMULATED = Reading(unavailable="simulated")
NO_ALLOCATOR = AllocatorReading(unavailable="simulated")
MODEL_BYTES = 100_000_000


class Host:
    """The process table of the simulated machine, and what goes wrong with model processes."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.alive: dict[int, SimModelProcess] = {}
        self.pids = itertools.count(1_000)
        self._ended_s: dict[int, float] = {}
        self.mend()

    def mend(self) -> None:
        self.hangs = self.load_failures = self.slow_loads = 0.0

    def gone(self, pid: int) -> None:
        """This model process has ended, in whichever way."""
        if self.alive.pop(pid, None) is not None:
            self._ended_s[pid] = self.loop.time()

    def ended_at_s(self, pid: int) -> float | None:
        return self._ended_s.get(pid)

    def spawned_by(self, parent: Process | None) -> None:
        """A worker's death takes its model processes with it, as PR_SET_PDEATHSIG does."""
        if parent is not None:
            parent.on_kill.append(lambda: self._orphaned(parent))

    def _orphaned(self, parent: Process) -> None:
        for child in [c for c in self.alive.values() if c.parent is parent]:
            self.gone(child.identity.pid)

    def kill_one(self) -> bool:
        """SIGKILL to some model process from outside, as the kernel does when memory is short."""
        if not self.alive:
            return False
        self.rng.choice(list(self.alive.values())).end(-9)
        return True


class SimModelProcess:
    """As worker.model.child.ModelProcess."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.parent = PROCESS.get()
        self.identity = Identity(next(host.pids), 0)
        self.scratch = Path("/nowhere")
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._asked = False
        host.alive[self.identity.pid] = self

    async def ask(self, request: frames.Request, timeout_ms: float) -> frames.Answer:
        rng = self.host.rng
        hangs = rng.random() < self.host.hangs
        async with asyncio.timeout(timeout_ms / 1_000):
            if hangs:
                await asyncio.shield(self.exited)
            else:
                took_s = rng.uniform(0.3, 3.0) if isinstance(request, frames.Start) else rng.uniform(0.001, 0.05)
                await asyncio.wait([self.exited], timeout=took_s)
        if self.exited.done():
            ended = self.exited.result()
            raise Refusal(ended.code, ended.message)
        return self._answer(request)

    def _answer(self, request: frames.Request) -> frames.Answer:
        if isinstance(request, frames.Confine):
            return frames.Confined(OfflineProof(["simulated"], [], [Attempt("connect", True, "refused")], True))
        if isinstance(request, frames.Prepare):
            return frames.Prepared({}, NO_ALLOCATOR)
        if isinstance(request, frames.Start):
            if self.host.rng.random() < self.host.load_failures:
                self.end(1)
                raise Refusal(Code.LOAD_FAILED, "simulated: the runtime refused the files")
            return frames.Facts(3, 256, 1_000)
        if isinstance(request, frames.CheckHealth):
            return frames.HealthSeen(Health(True, True, True, True, 1.0, "ab" * 32, 3), NO_ALLOCATOR)
        if isinstance(request, frames.Unload):
            self.host.loop.call_later(0.02, self.end, 0)
            return frames.UnloadedModel(NO_ALLOCATOR, NO_ALLOCATOR)
        rows = [frames.Rows(b"\0" * 12 * len(one.texts), len(one.texts), 3, [1] * len(one.texts),
                            [False] * len(one.texts), 1.0) for one in request.batch]  # fmt: skip
        return frames.Batch(list(rows))

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


class _Sampler:
    def __init__(self, identity: Identity) -> None:
        """Nothing to sample."""

    def sample(self) -> Reading:
        return Reading(bytes=MODEL_BYTES)

    async def close(self) -> Reading:
        return Reading(bytes=MODEL_BYTES)


class _Decoys:
    targets: Any = None

    @classmethod
    async def open(cls, state: Path) -> _Decoys:
        return cls()

    async def close(self) -> None:
        """Nothing was opened."""


class _Launcher:
    """Starts nothing: `spawn` does."""

    @classmethod
    def open(cls, state: Path, begin: Any, *, ends_strays: bool) -> _Launcher:
        return cls()

    async def close(self) -> None:
        """Nothing was opened."""


@contextlib.contextmanager
def on_machine(host: Host) -> Iterator[None]:
    """Run the worker on this host. SEAMS: every name of the worker that the simulation replaces."""

    async def spawn(launcher: Any, profile: Any) -> SimModelProcess:
        host.spawned_by(PROCESS.get())
        await asyncio.sleep(host.rng.uniform(0.01, 0.3))
        return SimModelProcess(host)

    def process_bytes(identity: Identity) -> Reading:
        return Reading(bytes=MODEL_BYTES if identity.pid in host.alive else 0)

    def verify(root: str, location: str, artifact_id: str, files: Any, cancel: Any, bound: Any = None) -> Any:
        return artifacts.Checked(len(files), sum(entry.size for entry in files), 1.0)

    def inspect(adapter: str, task: str, folder: Path, files: Any) -> Inspection:
        return Inspection(architecture="Simulated")

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=host.rng.getrandbits(128), version=4)

    seams = {
        "worker.model.loading.ModelProcess.spawn": spawn,
        "worker.model.loading.PeakSampler": _Sampler,
        "worker.model.load_memory.process_bytes": process_bytes,
        "worker.model.load_memory.read_host_memory": lambda: HostMemory(SIMULATED, SIMULATED),
        "worker.serving.residents.process_bytes": process_bytes,
        "worker.duty.work.artifacts.verify": verify,
        "worker.duty.work.artifacts.folder_path": lambda root, location: f"/nowhere/{location}",
        "worker.duty.work.registry.inspect": inspect,
        "worker.agent.sweep": lambda folder: 0,
        "worker.agent.Decoys": _Decoys,
        "worker.agent.Launcher": _Launcher,
        "worker.agent.capabilities": lambda: {"sentence_transformers": ["embedding"]},
        "worker.agent.runtime_environment": lambda: ENVIRONMENT,
        "uuid.uuid4": uuid4,
    }
    before = clock.count_by(host.loop.time)
    try:
        with contextlib.ExitStack() as stack:
            for name, replacement in seams.items():
                stack.enter_context(mock.patch(name, replacement))
            yield
    finally:
        clock.count_by(before)
