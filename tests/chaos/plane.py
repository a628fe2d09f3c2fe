"""An embedded plane to break: the worker reaches the bus through a proxy, a second control plane may stand by."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

from services.embedded.plane import Plane
from services.embedded.supervisor import ProcessSpec, Program, module_argv
from services.settings import Settings
from tests.chaos.proxy import HOST, Proxy
from tests.chaos.waiting import eventually

STANDBY = "standby"


class ChaosPlane(Plane):
    """A Plane whose worker reaches the bus through `proxy`, and that tells how processes ended."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, tell=lambda name, what: self.told.append((name, what)))
        self.told: list[tuple[str, str]] = []
        self.proxy = Proxy(lambda: self._nats.port or 0 if self._nats else 0)

    def _worker(self) -> ProcessSpec:
        spec = super()._worker()
        env = {**spec.env, "TENURE_NATS_URL": f"nats://{HOST}:{self.proxy.port}"}
        return ProcessSpec(spec.name, spec.argv, env, spec.grace_s)

    async def add_standby(self) -> None:
        """A second control plane on the same log, under another instance name."""
        control = next(spec for spec in self._services() if spec.name == "control")
        env = {**control.env, "TENURE_INSTANCE": STANDBY}
        await self._supervisor.add(Program(ProcessSpec(STANDBY, module_argv("services.control"), env), self.log_dir))

    async def remove_standby(self) -> None:
        kept = self._supervisor._kept.pop(STANDBY, None)
        if kept is not None:
            await kept.unit.stop()

    def killed(self, name: str) -> Awaitable[None]:
        """Kill -9 a process now; what is returned, awaited, waits until it was started again."""
        before = self.pid(name)
        self.kill(name)

        async def again() -> bool:
            return self.pid(name) not in (None, before)

        return eventually(again, f"{name} runs again")

    @contextlib.asynccontextmanager
    async def untended(self) -> AsyncIterator[None]:
        """Nothing is started again inside this block."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        try:
            yield
        finally:
            self._keeper = asyncio.create_task(self.keep(), name="plane")

    @property
    def jetstream_store(self) -> Path:
        if self._nats is None:
            raise RuntimeError("the plane has no NATS of its own")
        return self._nats.store_dir
