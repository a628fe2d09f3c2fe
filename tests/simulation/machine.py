"""The machine under a simulated worker: model processes, files, memory and a device, in place of the system's.

Everything above it is the production worker: agent, session, leases, dispatcher, outbox, residents, intake, the
loading steps, and whose memory is whose. What is replaced is listed in `seams` and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from msgspec.structs import replace

from schemas.environments import Device, RuntimeEnvironment
from schemas.evidence import Reading
from tests.simulation.device import SimAccelerator, SimDevice
from tests.simulation.loop import PROCESS, Process, SimLoop
from tests.simulation.model_process import WEIGHTS_BYTES, SimModelProcess
from tests.simulation.scenario import ADAPTERS, Scenario
from worker import artifacts, clock
from worker.adapters import registry
from worker.adapters.contract import Inspection
from worker.launch.processes import Identity
from worker.memory.accelerator import Accelerator, NoAccelerator
from worker.memory.cgroup import HostMemory

ENTRIES = {name: replace(registry.ENTRIES["sentence_transformers"], tasks=(task,)) for name, task in ADAPTERS.items()}
SIMULATED = Reading(unavailable="simulated")


class OutOfMemory(NamedTuple):
    """A model process did not get what it needed of the device: of which worker, spawned when, ended when."""

    worker: Process | None
    spawned_s: float
    at_s: float


class Host:
    """The process table of the simulated machine, its device, and what goes wrong with model processes."""

    def __init__(self, loop: SimLoop, rng: random.Random, scenario: Scenario) -> None:
        self.loop, self.rng, self.scenario = loop, rng, scenario
        self.device = SimDevice(loop, rng, scenario)
        self.alive: dict[int, SimModelProcess] = {}
        self.pids = itertools.count(1_000)
        self.short: list[OutOfMemory] = []
        self._ended_s: dict[int, float] = {}
        self.mend()

    def mend(self) -> None:
        self.hangs = self.load_failures = self.slow_loads = 0.0
        self.device.mend()

    def gone(self, pid: int) -> None:
        """This model process has ended, in whichever way."""
        if self.alive.pop(pid, None) is not None:
            self._ended_s[pid] = self.loop.time()
            self.device.give_back(pid)

    def ended_at_s(self, pid: int) -> float | None:
        return self._ended_s.get(pid)

    def out_of_memory(self, process: SimModelProcess) -> None:
        self.short.append(OutOfMemory(process.parent, process.spawned_s, self.loop.time()))

    def spawned_by(self, parent: Process | None) -> None:
        """A worker's death takes its model processes with it, as PR_SET_PDEATHSIG does."""
        if parent is not None:
            parent.on_kill.append(lambda: self._orphaned(parent))

    def _orphaned(self, parent: Process) -> None:
        for child in [c for c in self.alive.values() if c.parent is parent]:
            self.gone(child.identity.pid)

    def children(self) -> set[int]:
        """Of the process that asks."""
        return {pid for pid, child in self.alive.items() if child.parent is PROCESS.get()}

    def kill_one(self) -> bool:
        """SIGKILL to some model process from outside, as the kernel does when memory is short."""
        if not self.alive:
            return False
        self.rng.choice(list(self.alive.values())).end(-9)
        return True

    def environment(self) -> RuntimeEnvironment:
        devices = [Device(kind="cpu", index=0, name="simulated")]
        if self.scenario.device == "cuda":
            devices.append(Device("cuda", 0, "simulated", self.scenario.device_bytes))
        return RuntimeEnvironment(
            python="3.11", platform="simulated", worker="0", packages={}, adapters=dict.fromkeys(ADAPTERS, "1"),
            devices=devices,
        )  # fmt: skip

    def accelerator(self, environment: RuntimeEnvironment) -> Accelerator:
        has_device = any(device.kind == "cuda" for device in environment.devices)
        return SimAccelerator(self.device) if has_device else NoAccelerator()


class SimAdapter:
    """The part of an adapter that the parent uses. These files suit every one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def inspect_support(self, folder: Path, files: Any, task: str) -> Inspection:
        return Inspection(architecture="Simulated", weights_bytes=WEIGHTS_BYTES)


class _Sampler:
    def __init__(self, identity: Identity) -> None:
        """Nothing to sample."""

    def sample(self) -> Reading:
        return Reading(bytes=WEIGHTS_BYTES)

    async def close(self) -> Reading:
        return Reading(bytes=WEIGHTS_BYTES)


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


def seams(host: Host) -> dict[str, Any]:
    """Every name of the worker that the simulation replaces."""

    async def spawn(launcher: Any, profile: Any) -> SimModelProcess:
        host.spawned_by(PROCESS.get())
        await asyncio.sleep(host.rng.uniform(0.01, 0.3))
        return SimModelProcess(host)

    def process_bytes(identity: Identity) -> Reading:
        return Reading(bytes=WEIGHTS_BYTES if identity.pid in host.alive else 0)

    def verify(root: str, location: str, artifact_id: str, files: Any, cancel: Any, bound: Any = None) -> Any:
        return artifacts.Checked(len(files), sum(entry.size for entry in files), 1.0)

    def missing_packages(adapter: str) -> list[str]:
        return ["a-package-of-it"] if adapter in host.scenario.missing else []

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=host.rng.getrandbits(128), version=4)

    return {
        # processes and their memory
        "worker.model.loading.ModelProcess.spawn": spawn,
        "worker.model.loading.PeakSampler": _Sampler,
        "worker.memory.load_memory.process_bytes": process_bytes,
        "worker.memory.load_memory.private_bytes": process_bytes,
        "worker.memory.load_memory.read_host_memory": lambda: HostMemory(SIMULATED, SIMULATED),
        "worker.memory.load_memory.child_pids": host.children,
        "worker.memory.load_memory.time": SimpleNamespace(perf_counter=host.loop.time),
        "worker.serving.residents.process_bytes": process_bytes,
        "worker.agent.sweep": lambda folder: 0,
        # the device, and whose pids the driver knows
        "worker.session.accelerator_of": host.accelerator,
        "worker.memory.device_watch.child_pids": host.children,
        "worker.memory.device_watch.is_contained": lambda: host.scenario.contained,
        "worker.memory.attribution._is_here": lambda pid: pid in host.alive,
        # files, adapters and what is installed
        "worker.duty.work.artifacts.verify": verify,
        "worker.duty.work.artifacts.folder_path": lambda root, location: f"/nowhere/{location}",
        "worker.adapters.registry.ENTRIES": ENTRIES,
        "worker.adapters.registry.missing_packages": missing_packages,
        "worker.adapters.registry.adapter_of": SimAdapter,
        "worker.agent.runtime_environment": host.environment,
        "worker.agent.Decoys": _Decoys,
        "worker.agent.Launcher": _Launcher,
        "uuid.uuid4": uuid4,
    }


@contextlib.contextmanager
def on_machine(host: Host) -> Iterator[None]:
    """Run the worker on this host."""
    before = clock.count_by(host.loop.time)
    try:
        with contextlib.ExitStack() as stack:
            for name, replacement in seams(host).items():
                stack.enter_context(mock.patch(name, replacement))
            yield
    finally:
        clock.count_by(before)
