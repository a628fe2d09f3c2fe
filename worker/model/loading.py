"""The steps from nothing to a model that answers, and back to nothing.

    spawn -> confine, try to break out -> import what is not imported yet -> [readings before] -> read the weights
          -> health -> [readings loaded]
    [readings before the unload] -> unload -> exit -> [readings after]

`load_ms` of the profile bounds everything up to the weights, `health_ms` the check. Where a step fails,
the process is ended and seen to end before the failure is told. Weights are not read before isolation is
proven, unless the profile does without the proof.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

from msgspec import Struct, UnsetType

from schemas.codes import Code, Refusal
from schemas.evidence import Health, Memory, OfflineProof
from schemas.profiles import RuntimeProfile
from worker.clock import local_ms
from worker.launch.launching import Launcher
from worker.memory.allocator import AllocatorReading
from worker.memory.device_watch import DeviceWatch
from worker.memory.load_memory import NOT_ANSWERED, LoadMemory
from worker.memory.measure import PeakSampler
from worker.model import frames
from worker.model.child import Exit, ModelProcess
from worker.sandbox.confinement import Policy
from worker.sandbox.escape import Targets

ProgressStage = Literal["preparing", "loading", "healthchecking", "ready", "unloading"]
OnStage = Callable[[ProgressStage], None]


class LoadedModel(Struct, eq=False):
    """A model process that answers, with what was seen on the way."""

    process: ModelProcess
    profile: RuntimeProfile
    offline: OfflineProof
    facts: frames.Facts
    memory: LoadMemory
    health: Health
    prepare_ms: float
    load_ms: float
    health_ms: float


async def load_model(
    launcher: Launcher,
    targets: Targets,
    folder: str,
    profile: RuntimeProfile,
    source: frames.Source,
    devices: DeviceWatch,
    on_stage: OnStage,
) -> LoadedModel:
    """Raises Refusal with the step's code. Cancelled or failed, it leaves no process behind."""
    deadline = local_ms() + profile.limits.load_ms
    begun = time.perf_counter()
    process = await _spawn(launcher, profile)
    sampler = PeakSampler(process.identity)
    try:
        offline = await _confine(
            process, Policy(folder, str(process.scratch), profile.device == "cuda"), targets, deadline
        )
        if profile.require_offline_proof and not offline.proven:
            raise Refusal(Code.OFFLINE_NOT_PROVEN, _why_not_proven(offline))
        prepared = await _ask_to_load(process, frames.Prepare(profile, source), deadline)
        if not isinstance(prepared, frames.Prepared):
            raise Refusal(Code.INTERNAL_ERROR, f"the model process answered {type(prepared).__name__} to Prepare")
        prepare_ms = _elapsed_ms(begun)
        on_stage("loading")
        memory = LoadMemory(profile, process.identity, devices)
        await memory.before(prepared.allocator)
        begun = time.perf_counter()
        facts = await _ask_to_load(process, frames.Start(folder), deadline)
        if not isinstance(facts, frames.Facts):
            raise Refusal(Code.INTERNAL_ERROR, f"the model process answered {type(facts).__name__} to Start")
        load_ms = _elapsed_ms(begun)
        on_stage("healthchecking")
        begun = time.perf_counter()
        health, allocator = await _ask_health(process, profile, golden=True)
        health_ms = _elapsed_ms(begun)
        await memory.loaded(sampler.sample(), allocator)
        memory.process_peak = await sampler.close()
        if health.golden and not all(seen.passed for seen in health.golden):
            raise Refusal(Code.GOLDEN_MISSED, f"the model loaded and misses what its profile expects: {health.detail}")
        if not health.capability:
            raise Refusal(Code.HEALTH_FAILED, f"the model loaded and is not sound: {health.detail}")
    except BaseException:
        await sampler.close()
        await process.kill()
        raise
    return LoadedModel(process, profile, offline, facts, memory, health, prepare_ms, load_ms, health_ms)


async def _spawn(launcher: Launcher, profile: RuntimeProfile) -> ModelProcess:
    """A copy waits for a fork server that is still importing, so this step has the load's bound as well."""
    try:
        async with asyncio.timeout(profile.limits.load_ms / 1_000.0):
            return await ModelProcess.spawn(launcher, profile)
    except TimeoutError as error:
        raise Refusal(Code.LOAD_TIMEOUT, "the time to load ran out in step `spawn`") from error


async def _confine(process: ModelProcess, policy: Policy, targets: Targets, deadline: float) -> OfflineProof:
    answer = await _ask_to_load(process, frames.Confine(policy, targets), deadline)
    if not isinstance(answer, frames.Confined):
        raise Refusal(Code.INTERNAL_ERROR, f"the model process answered {type(answer).__name__} to Confine")
    return answer.proof


async def _ask_to_load(process: ModelProcess, request: frames.Request, deadline: float) -> frames.Answer:
    try:
        return await process.ask(request, max(deadline - local_ms(), 1.0))
    except TimeoutError as error:
        step = type(request).__name__.lower()
        raise Refusal(Code.LOAD_TIMEOUT, f"the time to load ran out in step `{step}`") from error


def _why_not_proven(offline: OfflineProof) -> str:
    done = [f"{attempt.action} ({attempt.detail})" for attempt in offline.attempts if not attempt.refused]
    return f"not refused: {', '.join(done) or 'nothing'}; missing layers: {', '.join(offline.missing) or 'none'}"


async def check_health(process: ModelProcess, profile: RuntimeProfile, *, golden: bool = False) -> Health:
    """One small real inference, and with `golden` the golden probes. What goes wrong is told layer by layer."""
    health, _ = await _ask_health(process, profile, golden=golden)
    return health


async def _ask_health(
    process: ModelProcess, profile: RuntimeProfile, *, golden: bool
) -> tuple[Health, AllocatorReading]:
    """And what the allocator held afterwards. Each golden probe has the time that the health check has."""
    begun = time.perf_counter()
    probes = len(profile.golden) if golden and not isinstance(profile.golden, UnsetType) else 0
    bound_ms = profile.limits.health_ms * (1 + probes)
    try:
        answer = await process.ask(frames.CheckHealth(golden), bound_ms)
    except TimeoutError:
        detail = f"no answer within {bound_ms} ms"
        alive = not process.exited.done()
        return Health(alive, False, False, False, _elapsed_ms(begun), detail=detail), NOT_ANSWERED
    except Refusal as refusal:
        alive = not process.exited.done()
        detail = f"{refusal.code}: {refusal.message}"
        return Health(alive, alive, False, False, _elapsed_ms(begun), detail=detail), NOT_ANSWERED
    if not isinstance(answer, frames.HealthSeen):
        detail = "an answer of another kind"
        return Health(True, False, False, False, _elapsed_ms(begun), detail=detail), NOT_ANSWERED
    return answer.health, answer.allocator


async def unload_model(model: LoadedModel) -> tuple[Exit, Memory, float]:
    """Ask the process to drop the model and end; end it where it doesn't within `unload_ms`. Then measure."""
    process, begun = model.process, time.perf_counter()
    deadline = local_ms() + model.profile.limits.unload_ms
    await model.memory.before_unload()
    process.expect_exit()
    try:
        answer = await process.ask(frames.Unload(), max(deadline - local_ms(), 1.0))
        if isinstance(answer, frames.UnloadedModel):
            model.memory.dropped(answer.before, answer.after)
        ended = await process.wait_exit(max(deadline - local_ms(), 1.0))
    except (TimeoutError, Refusal):
        model.memory.not_dropped()
        ended = await process.kill()
    unload_ms = _elapsed_ms(begun)  # a driver's delay in freeing is told by the memory itself
    return ended, await model.memory.after_exit(), unload_ms


def _elapsed_ms(begun: float) -> float:
    return (time.perf_counter() - begun) * 1_000.0
