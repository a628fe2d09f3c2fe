"""Faults, done and undone: from a `Fault` to what it means for network, disk, machine and processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from tests.simulation.bus import SimBus
from tests.simulation.faults import Fault
from tests.simulation.loop import SimLoop
from tests.simulation.machine import Host
from tests.simulation.network import SimNetwork
from tests.simulation.plane import Plane
from tests.simulation.storage import Disk
from tests.simulation.watch import Watch

Undo = Callable[[], object]
QUIET_S = 20.0  # after the last fault: two terms of a session, a lease, and an ack wait later
JUMPS_MS = (-3_600_000, -5_000, 5_000, 3_600_000)


class Injector:
    """What faults act on."""

    def __init__(
        self, loop: SimLoop, bus: SimBus, network: SimNetwork, disk: Disk, host: Host, plane: Plane, rng: random.Random
    ) -> None:
        self._loop, self._bus, self._network, self._disk = loop, bus, network, disk
        self._host, self._plane, self._rng = host, plane, rng
        self._over_s = loop.time()  # when the last fault is undone

    def is_quiet(self) -> bool:
        return self._loop.time() - self._over_s > QUIET_S

    async def run(self, faults: Sequence[Fault], watch: Watch) -> None:
        """Do each at its time, and undo it when it has lasted."""
        begun = self._loop.time()
        for fault in faults:
            await asyncio.sleep(max(begun + fault.at_s - self._loop.time(), 0))
            watch.coverage[f"fault {fault.kind}"] += 1
            watch.fault_or_event(f"FAULT {fault}")
            self._over_s = max(self._over_s, self._loop.time() + fault.lasts_s)
            undo = self._do(fault)
            if undo is not None:
                self._loop.call_later(fault.lasts_s, undo)

    def _do(self, fault: Fault) -> Undo | None:
        match fault.target:
            case "network":
                return self._to_network(fault.kind)
            case "bus":
                self._bus.up = False
                if fault.kind == "bus wiped":
                    self._bus.wipe()
                return lambda: setattr(self._bus, "up", True)
            case "disk":
                return self._to_disk(fault.kind)
            case "host":
                return self._to_host(fault.kind)
            case "clock":
                self._plane.clock_offset_ms += self._rng.choice(JUMPS_MS)
                return None
            case _:
                return self._to_process(fault)

    def _to_network(self, kind: str) -> Undo:
        network = self._network
        match kind:
            case "delay":
                network.slow = self._rng.uniform(10, 400)
                return lambda: setattr(network, "slow", 1.0)
            case "hints lost":
                network.hints_lost = True
                return lambda: setattr(network, "hints_lost", False)
            case "acks lost":
                network.acks_lost = self._rng.uniform(0.3, 0.9)
                return lambda: setattr(network, "acks_lost", 0.0)
            case _:  # loss, duplication, reordering
                setattr(network, kind, self._rng.uniform(0.02, 0.3))
                return lambda: setattr(network, kind, 0.0)

    def _to_disk(self, kind: str) -> Undo:
        name, bad, good = {
            "database away": ("away", True, False),
            "disk full": ("full", True, False),
            "disk stalls": ("stalled", True, False),
            "lost acks": ("lost_acks", 0.2, 0.0),
        }[kind]
        setattr(self._disk, name, bad)
        return lambda: setattr(self._disk, name, good)

    def _to_host(self, kind: str) -> Undo | None:
        host = self._host
        if kind == "child killed":
            host.kill_one()
            return None
        if kind == "foreign memory":
            pid = host.device.take_foreign()
            return lambda: host.device.give_back(pid)
        if kind == "driver fails":
            host.device.driver_fails = True
            return lambda: setattr(host.device, "driver_fails", False)
        name, bad = {
            "child hangs": ("hangs", 0.5),
            "loads fail": ("load_failures", 0.7),
            "loads are slow": ("slow_loads", 1.0),
        }[kind]
        setattr(host, name, bad)
        return lambda: setattr(host, name, 0.0)

    def _to_process(self, fault: Fault) -> Undo | None:
        process, plane = self._plane.processes[fault.target], self._plane
        match fault.kind:
            case "kill":
                plane.down_until[fault.target] = self._loop.time() + fault.lasts_s
                self._loop.kill(process)
            case "stop":
                self._loop.stop_process(process)
                return lambda: self._loop.resume(process)
            case "partition":
                client = plane.clients.get(fault.target)
                if client is not None:
                    client.connected = False
                    return lambda: setattr(client, "connected", True)
            case "crash at effect":
                self._network.crashing.add(fault.target)
                return lambda: self._network.crashing.discard(fault.target)
            case "second worker":
                plane.start("worker")
            case "worker leaves":
                plane.ask_to_stop()
        return None

    def mend(self) -> None:
        """Undo everything, now."""
        self._over_s = self._loop.time()
        self._network.mend()
        self._disk.mend()
        self._host.mend()
        self._bus.up = True
        for client in self._bus.clients:
            client.connected = True
        for process in [each for each, _ in self._plane.agents] + list(self._plane.processes.values()):
            if process.alive and process.stopped:
                self._loop.resume(process)
