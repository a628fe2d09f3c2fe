"""One generation of this worker: from its registration until it stops, is fenced, can't renew, or can't go on.

The session's term is renewed by beats and counted from when each beat was *sent*, on the local clock, less
a margin. When it ends, the worker stops itself, whatever the bus is doing: nothing is answered any more,
children are killed, evidence that nobody could accept is dropped. Only then may a new generation be asked
for. A beat that says `fenced` means a newer generation exists; then this process ends. So it does where the
connection to the bus is `closed` for good, which no reconnecting mends, and where one of the session's loops has
ended by itself: `failed`, a defect; a session without heartbeats, evidence or a watchdog is worse than none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct
from nats.aio.client import Client
from nats.errors import Error as NatsError

from schemas.codes import Code
from schemas.environments import RuntimeEnvironment
from schemas.evidence import ResidentLost
from schemas.live import Beat, BeatReply, LiveAnswer, inventory_digest
from schemas.subjects import HEADER_MSG_ID
from worker.cancellation import end_tasks, logged
from worker.clock import local_ms
from worker.duty.control import Control, Unreachable
from worker.duty.dispatch import Dispatcher
from worker.duty.leases import margin_ms
from worker.duty.message_size import check_size
from worker.duty.offers import OfferReader
from worker.duty.outbox import Outbox
from worker.duty.work import Workplace
from worker.launch.launching import Launcher
from worker.memory.accelerator import accelerator_of
from worker.memory.device_watch import DeviceWatch
from worker.sandbox.decoys import Decoys
from worker.serving.resident import Resident
from worker.serving.residents import Residents
from worker.serving.round_trip import RoundTrips
from worker.serving.serve import Server
from worker.settings import WorkerSettings

BEAT_TIMEOUT_MS_MAX = 5_000.0
PUBLISH_SECONDS_MAX = 5.0
WATCH_MS_MAX = 500.0
CONFIRM_SECONDS_MAX = 5.0  # how long a stopping worker waits for its last evidence to be committed
DRAIN_SECONDS_MAX = 20.0  # how long a stopping worker waits for invocations in flight
_log = structlog.get_logger(__name__)

End = Literal["stopped", "expired", "fenced", "closed", "failed"]


class Granted(Struct, frozen=True):
    """What registration returned, and when it was asked for on the local clock."""

    generation: str
    session_ms: int
    beat_ms: int
    lease_ms: int
    asked_ms: float


class Session:
    """Everything that belongs to one generation."""

    def __init__(
        self,
        settings: WorkerSettings,
        client: Client,
        control: Control,
        granted: Granted,
        key: Ed25519PrivateKey,
        boot_id: str,
        environment: RuntimeEnvironment,
        decoys: Decoys,
        launcher: Launcher,
    ) -> None:
        self.generation = granted.generation
        self._settings = settings
        self._client = client
        self._control = control
        self._boot_id = boot_id
        self._session_ms = float(granted.session_ms)
        self._beat_ms = float(granted.beat_ms or settings.beat_ms)
        self.valid_until_ms = granted.asked_ms + self._session_ms - margin_ms(self._session_ms)
        self._outbox = Outbox(settings.node_id, self.generation, key, self._publish, self._check_size)
        self.residents = Residents(self.generation, environment, self._on_lost, RoundTrips(client))
        self._devices = DeviceWatch(accelerator_of(environment))
        place = Workplace(
            str(settings.artifact_root), launcher, decoys.targets, environment, self.residents, self._devices
        )
        self._device_reserve_bytes: int | None = None
        self._dispatcher = Dispatcher(
            control, self._outbox, place, settings.node_id, self.generation, float(granted.lease_ms), self._devices.read
        )
        self._offers = OfferReader(client, settings.node_id, self._dispatcher.offer)
        self._server = Server(client, settings.node_id, self.residents, self.is_valid)
        self._ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._unwanted: dict[str, asyncio.Task[None]] = {}  # by deployment: residents that are being ended
        self._serving = True

    def is_valid(self) -> bool:
        """Whether this generation may still speak for the node, by its own clock."""
        return self._serving and local_ms() < self.valid_until_ms

    async def run(self, stop: asyncio.Event) -> End:
        """Until it ends; when this returns, nothing of the generation is left running."""
        try:
            await self._open(stop)
            end = await self._ended
            _log.info("session_ends", generation=self.generation, end=end)
            if end == "stopped":
                await self._stop_in_order()
        finally:
            self._serving = False
            await asyncio.gather(
                logged("residents", self.residents.kill_all()),
                logged("work", self._dispatcher.close("session_ended")),
            )
            await end_tasks([*self._tasks, *self._unwanted.values()])
            await logged("offers", self._offers.close())
            await logged("server", self._server.close())
            await logged("devices", self._devices.close())
        return end

    async def _open(self, stop: asyncio.Event) -> None:
        try:
            await self._server.open()
        except NatsError as error:
            self._end_by_itself("server", error)
            return
        loops = {
            "beats": self._beats(),
            "watchdog": self._watchdog(),
            "fencing": self._fencing(),
            "stopping": self._stopping(stop),
            "outbox": self._outbox.run(),
            "offers": self._offers.run(),
        }
        self._tasks = [asyncio.create_task(self._guarded(name, loop)) for name, loop in loops.items()]

    async def _guarded(self, name: str, loop: Coroutine[Any, Any, None]) -> None:
        """One of the session's loops. None of them may end before the session does."""
        try:
            await loop
        except asyncio.CancelledError as error:  # by us; or by nats-py, which cancels who waits when it closes
            self._end_by_itself(name, error)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, the others must not go on without it
            self._end_by_itself(name, error)
        else:
            self._end_by_itself(name, None)

    def _end_by_itself(self, loop: str, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if self._client.is_closed:
            self._end_closed()
            return
        _log.error("session_loop_ended", generation=self.generation, loop=loop, error=repr(error), exc_info=error)
        self._end("failed")

    def _end(self, end: End) -> None:
        if not self._ended.done():
            self._ended.set_result(end)

    async def _beats(self) -> None:
        while True:
            begun_ms = local_ms()
            await self.beat_step()
            await asyncio.sleep(max(self._beat_ms - (local_ms() - begun_ms), 0.0) / 1_000.0)

    async def beat_step(self) -> None:
        """One heartbeat and what its reply says."""
        if not self.is_valid():
            return
        self._devices.refresh()  # a beat waits for no driver
        sent_ms = local_ms()
        beat = Beat(
            node_id=self._settings.node_id,
            generation=self.generation,
            boot_id=self._boot_id,
            inventory_digest=inventory_digest(self.residents.inventory()),
            unconfirmed=self._outbox.unconfirmed(),
        )
        timeout_ms = min(max(self._beat_ms, self._session_ms / 4), BEAT_TIMEOUT_MS_MAX)
        try:
            reply = await self._control.beat(beat, timeout_ms)
        except Unreachable as error:
            _log.debug("beat_unanswered", error=str(error))
            return
        await self._take(reply, sent_ms)

    async def _take(self, reply: BeatReply, sent_ms: float) -> None:
        await self._outbox.confirm(reply.confirmed)
        if not self.is_valid():
            return  # too late to go on: the watchdog ends it, and a new generation is asked for
        if reply.fenced:
            self._end("fenced")
            return
        self._session_ms, self._beat_ms = float(reply.session_ms), float(reply.beat_ms)
        self._device_reserve_bytes = reply.device_reserve_bytes
        self.valid_until_ms = sent_ms + self._session_ms - margin_ms(self._session_ms)
        for deployment_id in reply.unwanted:
            self._end_unwanted(deployment_id)
        for work_id in reply.cancelled:
            self._dispatcher.cancel(work_id)
        for offer in reply.offers:
            self._dispatcher.offer(offer)

    def _end_unwanted(self, deployment_id: str) -> None:
        """In a task of its own: a process may take long to end, and a heartbeat late costs all the others."""
        if deployment_id not in self._unwanted:
            ending = asyncio.create_task(logged(deployment_id, self.residents.end_unwanted(deployment_id)))
            self._unwanted[deployment_id] = ending
            ending.add_done_callback(lambda _: self._unwanted.pop(deployment_id, None))

    async def _watchdog(self) -> None:
        """End the session when its term is over, or its connection.

        The connection is looked at, not told of: nats-py calls back last, and nobody where it fails while it closes.
        """
        while self.is_valid():
            if self._client.is_closed:
                self._end_closed()
                return
            # In short sleeps: the loop's clock stands still while the machine is suspended, the term does not.
            await asyncio.sleep(min(self.valid_until_ms - local_ms(), WATCH_MS_MAX) / 1_000.0)
        _log.error("session_not_renewed", generation=self.generation)
        self._serving = False
        self._end("expired")

    def _end_closed(self) -> None:
        _log.error("bus_closed", generation=self.generation, error=repr(self._client.last_error))
        self._end("closed")

    async def _fencing(self) -> None:
        await self._dispatcher.fenced.wait()
        self._end("fenced")

    async def _stopping(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._end("stopped")

    def _check_size(self, subject: str, body: bytes, message_id: str) -> None:
        check_size(self._client, subject, body, {HEADER_MSG_ID: message_id})

    async def _publish(self, subject: str, body: bytes, message_id: str) -> None:
        headers = {HEADER_MSG_ID: message_id}
        await self._client.jetstream().publish(subject, body, timeout=PUBLISH_SECONDS_MAX, headers=headers)

    async def _on_lost(self, resident: Resident, code: Code, message: str, exit_code: int | None) -> None:
        await self._outbox.add(
            resident.work_id, resident.attempt, ResidentLost(resident.deployment_id, code, message, exit_code)
        )

    async def _stop_in_order(self) -> None:
        """Give work back, drain, unload, tell of each resident's end, and wait for that to be committed."""
        await self._dispatcher.close("stopping")
        deployments = [entry.deployment_id for entry in self.residents.inventory()]
        await asyncio.gather(*(self._retire(deployment_id) for deployment_id in deployments))
        try:
            async with asyncio.timeout(CONFIRM_SECONDS_MAX):
                while self._outbox.unconfirmed() and self.is_valid():
                    await self.beat_step()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            _log.warning("evidence_unconfirmed_at_stop", count=len(self._outbox.unconfirmed()))

    async def _retire(self, deployment_id: str) -> None:
        try:
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                resident, ended, _, _ = await self.residents.unload(deployment_id)
        except Exception as error:  # noqa: BLE001 - what can't be unloaded in order is killed right after
            _log.warning("resident_not_unloaded", deployment_id=deployment_id, error=repr(error))
            return
        await self._on_lost(resident, Code.WORKER_LOST, "the worker stopped in good order", ended.exit_code)

    def live(self) -> LiveAnswer:
        devices, age_ms = self._devices.last()
        return LiveAnswer(
            node_id=self._settings.node_id,
            generation=self.generation,
            boot_id=self._boot_id,
            serving=self.is_valid(),
            residents=self.residents.live(),
            devices=devices,
            devices_age_ms=age_ms,
            device_reserve_bytes=self._device_reserve_bytes,
        )
