"""What each kind of work does, from its order to its final statement.

A handler looks, measures and tells; it judges nothing that the control plane can judge. Expected failures
raise Refusal and become WorkFailed with the same code. Handlers may be cancelled at any await and then
leave nothing behind: no thread that hashes, no process, no half-loaded resident.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from msgspec import UNSET, Struct, UnsetType

from schemas.codes import Code, Refusal
from schemas.environments import RuntimeEnvironment, fingerprint
from schemas.evidence import (
    DETAIL_CHARACTERS_MAX,
    DETAILS_MAX,
    Assessed,
    Drained,
    HealthChecked,
    Loaded,
    Probed,
    Statement,
    Unloaded,
    Verified,
)
from schemas.profiles import RuntimeProfile
from schemas.work import AssessSpec, JobSpec, ProbeSpec, VerifySpec, WorkOrder
from worker import artifacts
from worker.adapters import registry
from worker.adapters.contract import Inspection
from worker.launch.launching import Launcher
from worker.memory.device_watch import DeviceWatch
from worker.model import frames
from worker.model.loading import LoadedModel, OnStage, check_health, load_model, unload_model
from worker.sandbox.escape import Targets
from worker.serving.resident import Resident
from worker.serving.residents import Residents

HASH_BYTES_MAX_TO_ASSESS = 16 * 1024 * 1024  # larger files are compared by size: only their headers are read
REASONS_MAX = 64


class Workplace(Struct, frozen=True, eq=False):
    """What handlers work with."""

    artifact_root: str
    launcher: Launcher
    targets: Targets
    environment: RuntimeEnvironment
    residents: Residents
    devices: DeviceWatch


async def execute(order: WorkOrder, place: Workplace, on_stage: OnStage) -> Statement:
    """The final statement of this order. Raises Refusal."""
    match order.spec:
        case VerifySpec():
            return await _verify(order, order.spec, place, on_stage)
        case AssessSpec():
            return await _assess(order, order.spec, place, on_stage)
        case ProbeSpec():
            return await _probe(order, order.spec, place, on_stage)
        case JobSpec():
            return await _job(order, order.spec, place, on_stage)


async def _job(order: WorkOrder, spec: JobSpec, place: Workplace, on_stage: OnStage) -> Statement:
    if spec.verb == "load":
        return await _load(order, spec, place, on_stage)
    if spec.verb == "health":
        return await _health(spec, place)
    if spec.verb == "drain":
        return await _drain(spec, place)
    return await _unload(spec, place, on_stage)


async def _check_files(order: WorkOrder, artifact_id: str, place: Workplace, hash_bytes_max: int | None = None) -> str:
    """The folder's path, once its files are what the manifest says. The thread ends before this returns or raises."""
    _, checked_path = await _checked(order, artifact_id, _location(order), place, hash_bytes_max)
    return checked_path


async def _checked(
    order: WorkOrder, artifact_id: str, location: str, place: Workplace, hash_bytes_max: int | None
) -> tuple[artifacts.Checked, str]:
    cancel = threading.Event()
    root = place.artifact_root
    thread = asyncio.ensure_future(
        asyncio.to_thread(artifacts.verify, root, location, artifact_id, order.files, cancel, hash_bytes_max)
    )
    try:
        checked = await asyncio.shield(thread)
    except asyncio.CancelledError:
        cancel.set()
        await asyncio.wait([thread])
        thread.exception()  # `artifacts.Cancelled` or a refusal: neither is wanted any more
        raise
    return checked, artifacts.folder_path(root, location)


def _location(order: WorkOrder) -> str:
    if order.location is None:
        raise Refusal(Code.ARTIFACT_NOT_VERIFIED, "the order names no location of the set on this node")
    return order.location


def _profile(order: WorkOrder) -> RuntimeProfile:
    if order.profile is None:
        raise Refusal(Code.INTERNAL_ERROR, "the order carries no profile")
    return order.profile


async def _verify(order: WorkOrder, spec: VerifySpec, place: Workplace, on_stage: OnStage) -> Verified:
    on_stage("preparing")
    checked, _ = await _checked(order, spec.artifact_id, spec.location, place, None)
    return Verified(spec.location, checked.files, checked.bytes, checked.duration_ms)


async def _inspect(order: WorkOrder, adapter: str, task: str, folder: str) -> Inspection:
    return await asyncio.to_thread(registry.inspect, adapter, task, Path(folder), order.files)


async def _assess(order: WorkOrder, spec: AssessSpec, place: Workplace, on_stage: OnStage) -> Assessed:
    on_stage("preparing")
    folder = await _check_files(order, spec.artifact_id, place, HASH_BYTES_MAX_TO_ASSESS)
    seen = await _inspect(order, spec.adapter, spec.task, folder)
    return Assessed(
        compatible=seen.compatible,
        reasons=seen.reasons[:REASONS_MAX],
        fingerprint=fingerprint(place.environment),
        architecture=seen.architecture,
        parameters=seen.parameters,
        weights_bytes=seen.weights_bytes,
        dimensions=seen.dimensions,
        max_length=seen.max_length,
        details=_details(seen.details),
    )


def _details(details: dict[str, str]) -> dict[str, str] | UnsetType:
    kept = list(details.items())[:DETAILS_MAX]
    return {name[:DETAIL_CHARACTERS_MAX]: text[:DETAIL_CHARACTERS_MAX] for name, text in kept} or UNSET


async def _load_model(order: WorkOrder, spec: ProbeSpec | JobSpec, place: Workplace, on_stage: OnStage) -> LoadedModel:
    """Verify, inspect, load: what a probe and a load have in common."""
    artifact_id = spec.artifact_id
    profile = _profile(order)
    folder = await _check_files(order, artifact_id, place)
    seen = await _inspect(order, profile.adapter, profile.task, folder)
    if not seen.compatible:
        raise Refusal(Code.RUNTIME_INCOMPATIBLE, "; ".join(reason.message for reason in seen.reasons[:REASONS_MAX]))
    source = frames.Source(artifact_id, spec.profile_id, order.generation)
    return await load_model(place.launcher, place.targets, folder, profile, source, place.devices, on_stage)


async def _probe(order: WorkOrder, spec: ProbeSpec, place: Workplace, on_stage: OnStage) -> Probed:
    on_stage("preparing")
    here = fingerprint(place.environment)
    if spec.fingerprint != here:
        raise Refusal(Code.ENVIRONMENT_CHANGED, f"this node is {here}; the assessment was made on {spec.fingerprint}")
    model = await _load_model(order, spec, place, on_stage)
    try:
        on_stage("ready")
        on_stage("unloading")
        ended, memory, unload_ms = await unload_model(model)
    except BaseException:
        await model.process.kill()
        raise
    return Probed(
        fingerprint=here,
        health=model.health,
        memory=memory,
        offline=model.offline,
        prepare_ms=model.prepare_ms,
        load_ms=model.load_ms,
        health_ms=model.health_ms,
        unload_ms=unload_ms,
        child_pid=model.process.identity.pid,
        child_exit_code=ended.exit_code,
        started=model.process.way,
    )


async def _load(order: WorkOrder, spec: JobSpec, place: Workplace, on_stage: OnStage) -> Loaded:
    on_stage("preparing")
    wanted = Resident(
        spec.deployment_id, spec.artifact_id, spec.profile_id, _profile(order), order.work_id, order.attempt
    )

    async def load() -> LoadedModel:
        return await _load_model(order, spec, place, on_stage)

    resident, fresh = await place.residents.load(wanted, load)
    model = resident.running
    health = model.health if fresh else await check_health(model.process, model.profile, golden=True)
    if not health.capability:
        raise Refusal(Code.HEALTH_FAILED, f"the model is resident and not sound: {health.detail}")
    on_stage("ready")
    return Loaded(
        fingerprint=fingerprint(place.environment),
        health=health,
        memory=model.memory.while_loaded(),
        offline=model.offline,
        load_ms=model.prepare_ms + model.load_ms,
        child_pid=model.process.identity.pid,
        started=model.process.way,
    )


async def _health(spec: JobSpec, place: Workplace) -> HealthChecked:
    resident = place.residents.serving(spec.deployment_id)
    health = await check_health(resident.running.process, resident.profile)
    if not health.capability:
        layers = {name: str(getattr(health, name)).lower() for name in ("process", "runtime", "model", "capability")}
        raise Refusal(Code.HEALTH_FAILED, health.detail, layers)
    return HealthChecked(health=health, invocations=resident.invocations)


async def _drain(spec: JobSpec, place: Workplace) -> Drained:
    """Drained when all that was in flight at the beginning is answered; the deployment takes no more either way."""
    drain = await place.residents.drain(spec.deployment_id)
    if drain.left:
        message = f"{drain.left} of {drain.in_flight} invocations are still in flight after {drain.waited_ms:.0f} ms"
        raise Refusal(Code.DEADLINE_EXCEEDED, message)
    return Drained(in_flight=drain.in_flight, waited_ms=drain.waited_ms, invocations=drain.resident.invocations)


async def _unload(spec: JobSpec, place: Workplace, on_stage: OnStage) -> Unloaded:
    on_stage("unloading")
    resident, ended, memory, unload_ms = await place.residents.unload(spec.deployment_id)
    return Unloaded(
        memory=memory, unload_ms=unload_ms, child_exit_code=ended.exit_code, invocations=resident.invocations
    )
