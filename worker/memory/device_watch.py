"""The readings of this node's devices: fresh ones for whoever decides on them, the last one for whoever looks.

A driver may hang. So a look is waited for LOOK_SECONDS_MAX at most, and there is one thread at most that asks: while
an earlier look has not come back, the next says so and starts none. What could not be measured is said for every
device, with the reason: an empty list means that the node has no devices.
"""

from __future__ import annotations

import asyncio

import structlog

from schemas.devices import DeviceReading
from worker.clock import local_ms
from worker.launch.processes import Identity, is_alive
from worker.memory.accelerator import Accelerator, DeviceLook, unmeasured
from worker.memory.attribution import child_pids, is_contained, reading_of

LOOK_SECONDS_MAX = 5.0  # a card without persistence mode takes seconds to wake
_log = structlog.get_logger(__name__)


class DeviceWatch:
    """The devices of one node, for one event loop."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._turn = asyncio.Lock()
        self._asking: asyncio.Future[list[DeviceLook]] | None = None
        self._refreshing: asyncio.Task[list[DeviceReading]] | None = None
        self._last: list[DeviceReading] = []
        self._last_ms: float | None = None
        self._holders: dict[Identity, int] = {}  # model processes, and the device each has its model on
        self.contained = is_contained()

    def expect(self, identity: Identity, index: int) -> None:
        """From now until it ends, this process has a model on this device: a driver that lists it not is no witness."""
        self._holders[identity] = index

    async def look(self) -> list[DeviceLook]:
        """Begun after this call and waited for at most LOOK_SECONDS_MAX."""
        indices = self._accelerator.indices
        if not indices:
            return []
        try:
            async with asyncio.timeout(LOOK_SECONDS_MAX), self._turn:
                if self._asking is not None:
                    await asyncio.wait([self._asking])  # one that was given up; two threads must not ask
                self._asking = asyncio.ensure_future(asyncio.to_thread(self._accelerator.look))
                return await asyncio.shield(self._asking)
        except TimeoutError:
            why = f"the driver has not answered within {LOOK_SECONDS_MAX:g} s"
        except Exception as error:  # noqa: BLE001 - whatever a driver's library raises, it is no measurement
            why = repr(error)
        _log.warning("devices_not_measured", reason=why)
        return [unmeasured(index, why) for index in indices]

    async def look_at(self, index: int) -> DeviceLook:
        """One device. One that this node does not have is unmeasured, with that reason."""
        if index not in self._accelerator.indices:
            return unmeasured(index, f"this node has no CUDA device {index}")
        return next(look for look in await self.look() if look.index == index)

    async def read(self) -> list[DeviceReading]:
        """Measured now, for a decision that rests on it."""
        looks = await self.look()
        own = child_pids()
        self._holders = {holder: index for holder, index in self._holders.items() if is_alive(holder)}
        self._last = [
            reading_of(
                look,
                own,
                [holder.pid for holder, index in self._holders.items() if index == look.index],
                contained=self.contained,
            )
            for look in looks
        ]
        self._last_ms = local_ms()
        return self._last

    def refresh(self) -> None:
        """Have the last reading made anew, unless that is under way. Waits for nothing."""
        if self._accelerator.indices and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self.read())

    def last(self) -> tuple[list[DeviceReading], int | None]:
        """The last reading and its age in milliseconds, None where none was made yet."""
        age_ms = None if self._last_ms is None else max(round(local_ms() - self._last_ms), 0)
        return self._last, age_ms

    async def close(self) -> None:
        """End what waits for a driver. A thread that hangs in it cannot be ended by anybody."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
