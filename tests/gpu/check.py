"""Runs the check: each model through its whole life with the production code, a stranger beside one that is loaded.

On `cpu` everything runs but the device: that is how the check itself is tested where there is none. Nothing of the
device is held there; it was not measured.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from schemas.codes import Refusal
from schemas.devices import DeviceReading
from schemas.environments import RuntimeEnvironment, fingerprint
from schemas.evidence import Health, Memory, OfflineProof
from schemas.profiles import RuntimeProfile
from services.showcase.model import Model, files_of
from tests.gpu import findings, stranger
from tests.gpu.findings import Finding
from worker.adapters import registry
from worker.launch.launching import Launcher, beginning
from worker.memory.attribution import child_pids
from worker.memory.device_watch import DeviceWatch
from worker.model import frames
from worker.model.loading import LoadedModel, load_model, unload_model
from worker.sandbox.decoys import Decoys

INVOKE_MS_MAX = 60_000.0
STRANGER_BYTES = 512 * 1024 * 1024
SOURCE = frames.Source("0" * 64, "0" * 64, "1")

Record = Callable[[str], None]  # keep the raw answers of this moment


class Cycle(Struct, frozen=True):
    """One model's life as it was seen."""

    model: str
    profile: RuntimeProfile
    health: Health
    offline: OfflineProof
    answers: int
    exit_code: int
    loaded: DeviceReading | None
    memory: Memory


class Report(Struct, frozen=True, kw_only=True):
    """What the check saw and what it concludes. `recording` are NVML's raw answers, in order."""

    origin: str
    made_at: str
    held: bool
    environment: RuntimeEnvironment
    fingerprint: str
    device: str
    contained: bool
    findings: list[Finding]
    cycles: list[Cycle]
    stranger: list[DeviceReading]
    recording: dict[str, Any]


class Check:
    """One run, on one device. `record` keeps what the driver says raw at the moments that matter."""

    def __init__(self, profile_device: str, index: int, devices: DeviceWatch, record: Record, folder: Path) -> None:
        self._device, self._index = profile_device, index
        self._devices = devices
        self._record = record
        self._folder = folder
        self.findings: list[Finding] = []
        self.cycles: list[Cycle] = []
        self.stranger: list[DeviceReading] = []
        self._came: stranger.Stranger | None = None

    async def run(self, models: Sequence[Model]) -> None:
        """Every model; a stranger takes memory while the first one is loaded."""
        await self._a_stranger_comes()
        launcher = Launcher.open(self._folder, beginning(), ends_strays=True)
        decoys = await Decoys.open(self._folder)
        try:
            self._record("idle")
            for number, model in enumerate(models):
                await self._cycle(model, launcher, decoys, with_stranger=number == 0)
        finally:
            await decoys.close()
            await launcher.close()
            if self._came is not None:
                await stranger.end(self._came)

    def _note(self, model: Model, found: Sequence[Finding]) -> None:
        self.findings += [msgspec.structs.replace(each, name=f"{model.name}: {each.name}") for each in found]

    async def _cycle(self, model: Model, launcher: Launcher, decoys: Decoys, *, with_stranger: bool) -> None:
        profile = msgspec.structs.replace(model.profile, device=self._device, device_index=self._index)
        files = self._folder / "artifacts" / model.name
        files.mkdir(parents=True)
        model.build(files)
        inspected = registry.inspect(profile.adapter, profile.task, files, files_of(files))
        if not inspected.compatible:
            why = "; ".join(reason.message for reason in inspected.reasons)
            self._note(model, [Finding("it can be loaded here", "not measured", why)])
            return
        try:
            loaded = await load_model(
                launcher, decoys.targets, str(files), profile, SOURCE, self._devices, lambda stage: None
            )
        except Refusal as refusal:
            detail = f"{refusal.code}: {refusal.message}"
            self._note(model, [findings.judged("it loads and is sound", False, detail)])
            return
        try:
            await self._loaded(model, profile, loaded, with_stranger=with_stranger)
        finally:
            await loaded.process.kill()

    async def _loaded(self, model: Model, profile: RuntimeProfile, loaded: LoadedModel, *, with_stranger: bool) -> None:
        answers, refused = await ask(loaded, model)
        self._record(f"{model.name} loaded")
        reading = await self._reading()
        if with_stranger:
            await self._beside_a_stranger()
        ended, memory, _ = await unload_model(loaded)
        self._record(f"{model.name} unloaded")
        self.cycles.append(
            Cycle(model.name, profile, loaded.health, loaded.offline, answers, ended.exit_code, reading, memory)
        )
        own = [
            findings.judged("it loads and is sound", loaded.health.capability, loaded.health.detail),
            findings.judged(
                "it was isolated while it loaded", loaded.offline.proven, ", ".join(loaded.offline.missing)
            ),
            findings.judged("every request is answered", not refused and answers > 0, "; ".join(refused)),
            findings.judged("its process ended in order", ended.exit_code == 0, ended.message),
        ]
        self._note(model, [*own, *findings.of_memory(memory)])

    async def _reading(self) -> DeviceReading | None:
        return next((each for each in await self._devices.read() if each.index == self._index), None)

    async def _a_stranger_comes(self) -> None:
        folder = self._folder / "stranger"
        folder.mkdir()
        name = f"{self._device}:{self._index}" if self._device == "cuda" else self._device
        try:
            self._came = await stranger.come(name, STRANGER_BYTES, folder)
        except RuntimeError as error:
            self.findings.append(findings.judged("a stranger comes", False, str(error)))

    async def _beside_a_stranger(self) -> None:
        came = self._came
        if came is None:
            return
        before = await self._reading()
        try:
            await stranger.hold(came)
            ours = came.identity.pid in child_pids()
            during = await self._reading()
            self._record("beside a stranger")
        except RuntimeError as error:
            self.findings.append(findings.judged("a stranger takes memory beside a model", False, str(error)))
            return
        finally:
            gone = await stranger.end(came)
        after = await self._reading()
        self._record("after the stranger")
        self.findings += [
            findings.judged("a stranger is no process of ours", not ours, f"pid {came.identity.pid}"),
            findings.judged("a stranger is left alone and ends by itself", gone),
        ]
        missing = DeviceReading(self._index, unavailable="no device was measured")
        self.stranger = [before or missing, during or missing, after or missing]
        self.findings += findings.of_stranger(*self.stranger, STRANGER_BYTES)


async def ask(loaded: LoadedModel, model: Model) -> tuple[int, list[str]]:
    """How many of the model's requests were answered, and what was said to the others."""
    bodies = [msgspec.msgpack.encode(request) for request in model.requests]
    batch = await loaded.process.ask(frames.Invoke(1, bodies), INVOKE_MS_MAX)
    if not isinstance(batch, frames.Batch):
        return 0, [f"the model process answered {type(batch).__name__}"]
    refused = [f"{each.code}: {each.message}" for each in batch.answers if isinstance(each, frames.Refused)]
    return len(batch.answers) - len(refused), refused


def report(
    check: Check,
    origin: str,
    environment: RuntimeEnvironment,
    device: str,
    *,
    contained: bool,
    recording: dict[str, Any],
) -> Report:
    """The evidence. It is held where something was checked and nothing failed."""
    failed = [each for each in check.findings if each.outcome == "not held"]
    return Report(
        origin=origin,
        made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        held=bool(check.findings) and not failed,
        environment=environment,
        fingerprint=fingerprint(environment),
        device=device,
        contained=contained,
        findings=check.findings,
        cycles=check.cycles,
        stranger=check.stranger,
        recording=recording,
    )
