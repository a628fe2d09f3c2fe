"""The residents of this worker: a bounded map from deployment to the model process that serves it.

Each has its own process, readings and intake; what happens to one never touches another. States:

    loading -> resident -> draining -> unloading -> (gone)

Loading the same deployment twice loads once: the second waits for the first and gets its outcome. Loading
what drains takes it back into service. A process that ends without being asked takes its resident out of
the map at once and is reported to `on_lost`. Nothing here decides what should be resident; that's work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from schemas.codes import Code, Refusal
from schemas.environments import RuntimeEnvironment, fingerprint
from schemas.evidence import Memory
from schemas.live import InventoryEntry
from schemas.live import Resident as LiveResident
from schemas.tokens import RESIDENTS_PER_NODE_MAX
from worker.memory.measure import process_bytes
from worker.model.child import Exit
from worker.model.loading import LoadedModel, unload_model
from worker.serving.intake import Intake, RoundTrip
from worker.serving.resident import Drain, Resident

LOAD_ROUNDS_MAX = 8  # how often one load waits for another's outcome before it gives up
_log = structlog.get_logger(__name__)


OnLost = Callable[[Resident, Code, str, int | None], Awaitable[None]]
Load = Callable[[], Awaitable[LoadedModel]]


class Residents:
    """The map, for one generation."""

    PSS_AGE_SECONDS_MAX = 1.0

    def __init__(
        self,
        generation: str,
        environment: RuntimeEnvironment,
        on_lost: OnLost,
        round_trip: RoundTrip | None = None,
    ) -> None:
        self.generation = generation
        self.fingerprint = fingerprint(environment)
        self._on_lost = on_lost
        self._round_trip = round_trip
        self._by_id: dict[str, Resident] = {}
        self._watches: set[asyncio.Task[None]] = set()

    def get(self, deployment_id: str) -> Resident | None:
        return self._by_id.get(deployment_id)

    def serving(self, deployment_id: str) -> Resident:
        """The resident with a model, whatever it does; raises Refusal where there is none."""
        resident = self._by_id.get(deployment_id)
        if resident is None or resident.model is None:
            raise Refusal(Code.NOT_RESIDENT, f"deployment `{deployment_id}` is not resident on this worker")
        return resident

    async def load(self, wanted: Resident, load: Load) -> tuple[Resident, bool]:
        """The resident, and whether this call loaded it. Raises Refusal."""
        for _ in range(LOAD_ROUNDS_MAX):
            known = self._by_id.get(wanted.deployment_id)
            if known is None:
                await self._load_new(wanted, load)
                return wanted, True
            if not known.is_same(wanted):
                raise Refusal(
                    Code.RESIDENCY_CONFLICT,
                    f"deployment `{wanted.deployment_id}` is {known.state} here with another artifact or profile",
                )
            if known.state in {"resident", "draining"}:
                known.set_state("resident")
                return known, False
            await self._wait_for(known)
        raise Refusal(Code.RESIDENCY_CONFLICT, f"deployment `{wanted.deployment_id}` kept changing while it was loaded")

    async def _wait_for(self, known: Resident) -> None:
        """Until its load or unload is over; a load's refusal is the waiter's too."""
        if known.state == "unloading":
            await known.gone.wait()
            return
        await asyncio.wait([known.loaded])
        refusal = None if known.loaded.cancelled() else known.loaded.result()
        if refusal is not None:
            raise refusal

    async def _load_new(self, resident: Resident, load: Load) -> None:
        if len(self._by_id) >= RESIDENTS_PER_NODE_MAX:
            raise Refusal(Code.NODE_FULL, f"{len(self._by_id)} deployments are resident here; that is the bound")
        self._by_id[resident.deployment_id] = resident
        try:
            model = await load()
        except Refusal as refusal:
            self._remove(resident)
            resident.loaded.set_result(refusal)
            raise
        except BaseException:
            self._remove(resident)
            resident.loaded.cancel()
            raise
        resident.model = model
        resident.intake = Intake(model, self._hung(resident), self._round_trip)
        resident.set_state("resident")
        resident.loaded.set_result(None)
        watch = asyncio.create_task(self._watch(resident, model))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _watch(self, resident: Resident, model: LoadedModel) -> None:
        """See the process end; if nobody asked it to, the resident is lost."""
        ended = await asyncio.shield(model.process.exited)
        if ended.asked:
            return
        await self._lose(resident, ended.code, ended.message, ended.exit_code)

    def _hung(self, resident: Resident) -> Callable[[str], Awaitable[None]]:
        async def end(message: str) -> None:
            model = resident.model
            if model is None or model.process.exited.done() or resident.state == "unloading":
                return
            code = Code.DEADLINE_EXCEEDED
            resident.set_state("unloading")  # whatever becomes of the process, it serves no more
            if resident.intake is not None:
                await resident.intake.close(code, message)
            try:
                ended = await model.process.kill()
            except TimeoutError:
                self._keep_until_gone(resident, model)
                await self._on_lost(resident, code, f"{message}; nobody can end the process", None)
            else:
                await self._lose(resident, code, message, ended.exit_code)

        return end

    async def _lose(self, resident: Resident, code: Code, message: str, exit_code: int | None) -> None:
        if self._by_id.get(resident.deployment_id) is not resident:
            return
        _log.error("resident_lost", deployment_id=resident.deployment_id, code=code, reason=message)
        self._remove(resident)
        if resident.intake is not None:
            await resident.intake.close(code, message)
        await self._on_lost(resident, code, message, exit_code)

    def _remove(self, resident: Resident) -> None:
        if self._by_id.get(resident.deployment_id) is resident:
            del self._by_id[resident.deployment_id]
        resident.gone.set()

    async def drain(self, deployment_id: str) -> Drain:
        """Take no more invocations and wait for those accepted, at most the profile's `drain_ms`."""
        resident = self.serving(deployment_id)
        if resident.state == "resident":
            resident.set_state("draining")
        begun, in_flight, left = time.perf_counter(), 0, 0
        if resident.intake is not None:
            in_flight = resident.intake.in_flight
            left = await resident.intake.drained(resident.profile.limits.drain_ms)
        return Drain(resident, in_flight, left, (time.perf_counter() - begun) * 1_000.0)

    async def unload(self, deployment_id: str) -> tuple[Resident, Exit, Memory, float]:
        """Drain, end the process, measure what came back."""
        resident = (await self.drain(deployment_id)).resident
        if resident.state == "unloading" or resident.model is None:
            raise Refusal(Code.RESIDENCY_CONFLICT, f"deployment `{deployment_id}` is being unloaded already")
        resident.set_state("unloading")
        try:
            if resident.intake is not None:
                await resident.intake.close(Code.NOT_RESIDENT, "the deployment was unloaded")
            ended, memory, unload_ms = await unload_model(resident.model)
        except TimeoutError as error:  # killed, and still there: it stays in the map, so that it is told and measured
            self._keep_until_gone(resident, resident.model)
            raise _still_there(resident.model) from error
        except BaseException:  # given up halfway, say cancelled while the model hangs: nobody else would end it
            await self._end(resident, resident.model)
            raise
        self._remove(resident)
        return resident, ended, memory, unload_ms

    def _keep_until_gone(self, resident: Resident, model: LoadedModel) -> None:
        async def wait() -> None:
            await asyncio.shield(model.process.exited)
            _log.warning("stuck_process_gone", deployment_id=resident.deployment_id, pid=model.process.identity.pid)
            self._remove(resident)

        waiting = asyncio.create_task(wait())
        self._watches.add(waiting)
        waiting.add_done_callback(self._watches.discard)

    async def discard(self, work_id: str) -> None:
        """End what this load made: its lease ended before it could be told."""
        for resident in list(self._by_id.values()):
            if resident.work_id == work_id and resident.model is not None:
                await self._kill(resident)

    async def end_unwanted(self, deployment_id: str) -> None:
        """End a resident that the log does not know of, say because its load's word came too late to count."""
        resident = self._by_id.get(deployment_id)
        if resident is not None and resident.state in {"resident", "draining"}:
            _log.warning("unwanted_ended", deployment_id=deployment_id)
            await self._kill(resident)

    async def kill_all(self) -> None:
        """End every process now: the right to hold them is over."""
        residents = list(self._by_id.values())
        await asyncio.gather(*(self._kill(resident) for resident in residents))

    async def _kill(self, resident: Resident) -> None:
        if resident.model is None:
            self._remove(resident)
            return
        resident.set_state("unloading")
        if resident.intake is not None:
            await resident.intake.close(None, "")
        await self._end(resident, resident.model)

    async def _end(self, resident: Resident, model: LoadedModel) -> None:
        """End its process; where nobody can, it stays in the map until it has ended."""
        try:
            await model.process.kill()
        except TimeoutError:
            _log.error("process_cannot_be_ended", deployment_id=resident.deployment_id, pid=model.process.identity.pid)
            self._keep_until_gone(resident, model)
        else:
            self._remove(resident)

    def inventory(self) -> list[InventoryEntry]:
        return [self._entry(resident) for resident in self._by_id.values()]

    def _entry(self, resident: Resident) -> InventoryEntry:
        return InventoryEntry(
            deployment_id=resident.deployment_id,
            artifact_id=resident.artifact_id,
            profile_id=resident.profile_id,
            fingerprint=self.fingerprint,
            generation=self.generation,
            state=resident.state,
        )

    def live(self) -> list[LiveResident]:
        return [
            LiveResident(
                entry=self._entry(resident),
                since_ms=resident.since_ms,
                child_pid=resident.model.process.identity.pid if resident.model else 0,
                in_flight=resident.intake.in_flight if resident.intake else 0,
                invocations=resident.invocations,
                process_bytes=self._process_bytes(resident),
            )
            for resident in self._by_id.values()
        ]

    def _process_bytes(self, resident: Resident) -> int | None:
        """PSS, read at most once a second: a large process's pages take the kernel a while to walk."""
        if resident.model is None:
            return None
        now = time.monotonic()
        if resident.measured is None or now - resident.measured[0] > self.PSS_AGE_SECONDS_MAX:
            resident.measured = (now, process_bytes(resident.model.process.identity).bytes)
        return resident.measured[1]


def _still_there(model: LoadedModel) -> Refusal:
    """A process in uninterruptible sleep, say in a driver that hangs, can be ended by nobody."""
    identity = model.process.identity
    held = process_bytes(identity)
    how_much = f"holds {held.bytes} bytes" if held.bytes is not None else f"may hold memory ({held.unavailable})"
    message = f"the model process {identity.pid} was killed, has not ended and {how_much}"
    return Refusal(Code.RECLAIM_INCOMPLETE, message, {"pid": str(identity.pid), "process_bytes": str(held.bytes)})
