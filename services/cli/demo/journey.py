"""The main job from a folder to a proven unload, gate by gate, with the evidence each gate gave.

Every step calls what the single command for it calls. A step either holds, with what it measured, or is recorded
with its refusal and the journey ends there; nothing is skipped over. Running it again on the same plane reuses
the set and the profile and makes a new probe, candidate and deployment.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, field

from projections.rows import CandidateRow, DeploymentRow, NodeRow, ProfileRow, WorkRow
from schemas.codes import Code, Refusal
from schemas.profiles import RuntimeProfile
from schemas.tasks.requests import Request
from services.cli.look import audit, ps
from services.cli.prove import artifact, assess, candidate, probe, profile
from services.cli.screen.evidence import refusals
from services.cli.screen.formats import reading, short, size, span
from services.cli.screen.terminal import Terminal
from services.cli.serve import deployment
from services.client import Client
from services.client.live import Holding

NODE_READY_TIMEOUT_S = 60.0
HOLDING_TIMEOUT_S = 5.0
POLL_S = 0.2
NAMES_MAX = 10_000


class Step(Struct, kw_only=True):
    """One gate. `proven` is the sentence a person reads, `measured` the figures behind it."""

    step: str
    held: bool = False
    proven: str = ""
    took_ms: float = 0.0
    measured: dict[str, Any] = field(default_factory=dict)
    code: str | None = None

    def hold(self, proven: str, **measured: Any) -> None:
        self.held, self.proven, self.measured = True, proven, measured


class Piece(Protocol):
    """What a journey is made with: a model's folder, its profile, and how its answers are held to the library's own."""

    name: str
    folder: Path
    profile: RuntimeProfile
    request: Request

    async def ask(self, client: Client, row: DeploymentRow, terminal: Terminal) -> tuple[str, dict[str, Any]]:
        """Ask the deployment and compare: what was proven, in words and as figures. Raises Refusal where it misses."""
        ...


class Journey:
    """The steps of one piece so far, and what later steps need of earlier ones."""

    def __init__(self, client: Client, terminal: Terminal, node_id: str, piece: Piece) -> None:
        self.client = client
        self.piece = piece
        self.terminal = terminal
        self.node_id = node_id
        self.steps: list[Step] = []
        self.artifact_id = ""

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """A gate that must hold. A refusal is recorded before it goes on; falling through without proof is a defect."""
        step = Step(step=name)
        self.steps.append(step)
        began = time.perf_counter()
        try:
            yield step
        except Refusal as refusal:
            step.held, step.code, step.proven = False, refusal.code, refusal.message
            raise
        finally:
            step.took_ms = (time.perf_counter() - began) * 1_000
        if not step.held:
            raise AssertionError(f"step {name} ended without a proof")
        self.terminal.say(f"✓ {name}: {step.proven} ({span(step.took_ms)})")

    async def go(self) -> None:
        """All gates in order. Raises the Refusal of the first that does not hold."""
        self.artifact_id, assessment_id = await self._set(self.piece.folder)
        profile_row = await self._profile(assessment_id)
        found = await self._probe(assessment_id, profile_row)
        served = await self._deployment(found)
        loaded = await self._load(served)
        await self._invoke(served)
        await self._health(served)
        await self._drain(served)
        await self._unload(served, loaded)

    async def ready(self) -> NodeRow:
        """The node, once its worker is alive and answers."""
        ends = time.monotonic() + NODE_READY_TIMEOUT_S
        while True:
            try:
                nodes = await self.client.rows(NodeRow, {"id": self.node_id})
                if nodes and nodes[0].session == "alive":
                    answer = await self.client.live(self.node_id, nodes[0].generation)
                    if answer is not None and answer.generation == nodes[0].generation:
                        return nodes[0]
            except Refusal as refusal:
                if refusal.code is not Code.UNAVAILABLE or time.monotonic() > ends:
                    raise
            if time.monotonic() > ends:
                message = f"node {self.node_id!r} has no live worker after {NODE_READY_TIMEOUT_S:g} s"
                raise Refusal(Code.NODE_ABSENT, message, {"advice": "Look at the worker's log in the data folder."})
            await asyncio.sleep(POLL_S)

    async def _set(self, folder: Path) -> tuple[str, str]:
        with self.step("artifact add") as step:
            prepared = await artifact.prepare(
                self.client, self.terminal, folder, self.piece.name, self.node_id, True, ()
            )
            row, _ = await artifact.register(self.client, prepared)
            proven = f"{row.files} files, {size(row.bytes)}, named by their digest {short(row.id)}"
            step.hold(proven, artifact_id=row.id, files=row.files, bytes=row.bytes, location=prepared.location)
        with self.step("artifact verify") as step:
            work = await artifact.verify(self.client, self.terminal, row.id, self.node_id, prepared.location)
            hashed = size(work.result.get("bytes"))
            step.hold(f"the node hashed {hashed} itself in {span(work.result.get('duration_ms'))}", **plain(work))
        with self.step("assess") as step:
            settings = self.piece.profile
            work = await assess.assess(
                self.client, self.terminal, row.id, self.node_id, settings.task, settings.adapter
            )
            result = assess.compatible(work).result
            parameters = result.get("parameters")
            proven = f"compatible without loading: {result.get('architecture')}, {parameters:,} parameters"
            step.hold(proven, assessment_id=work.id, **plain(work))
        return row.id, work.id

    async def _profile(self, assessment_id: str) -> ProfileRow:
        with self.step("profile create") as step:
            settings = self.piece.profile
            row = await profile.create(self.client, assessment_id, settings)
            step.hold(f"{settings.device} {settings.dtype}, digest {short(row.id)}", profile_id=row.id)
        return row

    async def _probe(self, assessment_id: str, profile_row: ProfileRow) -> CandidateRow:
        with self.step("probe run") as step:
            work_id, position = await probe.request(self.client, assessment_id, profile_row.id)
            work, found = await probe.finish(self.client, self.terminal, work_id, position)
            if not work.result["offline"]["proven"]:
                raise Refusal(Code.OFFLINE_NOT_PROVEN, "the probe ran without a proof that it was offline")
            if not work.result["memory"]["reclaim_complete"]:
                raise Refusal(Code.RECLAIM_INCOMPLETE, "the probe's memory did not come back in full")
            step.hold(probe_words(work), probe_id=work.id, **plain(work))
        with self.step("candidate") as step:
            if found.production or found.status != "lab_ready":
                raise Refusal(
                    Code.INTERNAL_ERROR, f"a fresh candidate is {found.status}, production {found.production}"
                )
            proven = f"{found.status}, not for production, digest {short(found.digest)}"
            step.hold(proven, candidate_id=found.id, digest=found.digest, status=found.status)
        return found

    async def _deployment(self, found: CandidateRow) -> DeploymentRow:
        with self.step("approve") as step:
            approved = await candidate.approve(self.client, found, found.digest, "tenure demo")
            step.hold(f"{approved.approved_by} approved exactly this digest", approved_by=approved.approved_by)
        with self.step("deploy") as step:
            taken = {row.name for row in await self.client.rows(DeploymentRow)}
            name = next(name for name in names(self.piece.profile.task) if name not in taken)
            row = await deployment.create(
                self.client, name, approved, approved.digest, self.piece.profile.task, [self.node_id]
            )
            step.hold(f"{row.name} serves {row.capability} on {self.node_id}", deployment_id=row.id, name=row.name)
        return row

    async def _load(self, row: DeploymentRow) -> WorkRow:
        with self.step("load") as step:
            work = await self._job(row, "load")
            held = await self._holding(row, "loaded")
            proven = (
                f"loaded on the worker's word: pid {held.pid}, {size(held.process_bytes)}, generation {held.generation}"
            )
            step.hold(proven, process_bytes=held.process_bytes, generation=held.generation, **plain(work))
        return work

    async def _invoke(self, row: DeploymentRow) -> None:
        with self.step("invoke") as step:
            proven, measured = await self.piece.ask(self.client, row, self.terminal)
            step.hold(proven, **measured)

    async def _health(self, row: DeploymentRow) -> None:
        with self.step("health") as step:
            work = await self._job(row, "health")
            health = work.result["health"]
            step.hold(f"a real inference was sound in {span(health.get('latency_ms'))}", **plain(work))

    async def _drain(self, row: DeploymentRow) -> None:
        with self.step("drain") as step:
            work = await self._job(row, "drain")
            refused = await self._refused(row)
            proven = f"{work.result.get('in_flight')} in flight; a later request is refused with {refused}"
            step.hold(proven, refused_with=refused, **plain(work))

    async def _refused(self, row: DeploymentRow) -> str:
        """The code with which a drained deployment turns a request away."""
        try:
            await self.client.invoke(row, self.piece.request)
        except Refusal as refusal:
            if refusal.code in (Code.DRAINING, Code.NOT_RESIDENT):
                return str(refusal.code)
            raise
        raise Refusal(Code.RESIDENCY_CONFLICT, "a drained deployment still answered")

    async def _unload(self, row: DeploymentRow, loaded: WorkRow) -> None:
        with self.step("unload") as step:
            work = await self._job(row, "unload")
            await self._holding(row, "absent")
            pid = loaded.result.get("child_pid")
            if isinstance(pid, int) and await asyncio.to_thread(os.path.exists, f"/proc/{pid}"):
                raise Refusal(Code.RECLAIM_INCOMPLETE, f"process {pid} of the model still exists")
            proven = f"{reading(work.result['memory']['reclaimed'])} came back; the process has exited"
            step.hold(f"{proven} with {work.result.get('child_exit_code')}", **plain(work))

    async def replay(self, dsn: str, artifact_ids: Sequence[str]) -> audit.Audit:
        """Fold the whole log again, and tell the story of these artifacts. A step like the others."""
        with self.step("audit replay") as step:
            streams = [f"artifact-{artifact_id}" for artifact_id in artifact_ids]
            found = await audit.replay(dsn, self.terminal, streams)
            if not found.consistent:
                raise Refusal(Code.CONFLICT, "the replay found violations; run `tenure audit replay`")
            step.hold("the whole log folds again to the same state, nothing violated", **figures(found.report))
        return found

    async def _job(self, row: DeploymentRow, verb: str) -> WorkRow:
        work = await deployment.do(self.client, self.terminal, row, self.node_id, verb)
        if work is None:
            raise Refusal(Code.RESIDENCY_CONFLICT, f"{verb} was not needed on a deployment this run made")
        return work

    async def _holding(self, row: DeploymentRow, wanted: str) -> Holding:
        """What `tenure ps` says of this deployment, once it is this; the log may be a moment ahead of the worker."""
        ends = time.monotonic() + HOLDING_TIMEOUT_S
        while True:
            held = next(each for each in await ps.holdings(self.client) if each.deployment_id == row.id)
            if held.state == wanted:
                return held
            if time.monotonic() > ends:
                message = f"{row.name} is {held.state} and not {wanted}: {held.reason}"
                raise Refusal(Code.NOT_RESIDENT if wanted == "loaded" else Code.RESIDENCY_CONFLICT, message)
            await asyncio.sleep(POLL_S)


def names(task: str) -> Iterator[str]:
    yield f"demo-{task}"
    for number in range(2, NAMES_MAX):
        yield f"demo-{task}-{number}"
    raise Refusal(Code.NAME_TAKEN, f"{NAMES_MAX} demo deployments exist")


def plain(work: WorkRow) -> dict[str, Any]:
    """The work's statement as figures, with its id."""
    return {"work_id": work.id, **{name: value for name, value in work.result.items() if name != "type"}}


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """The report's numbers, and how long its lists are."""
    return {name: len(value) if isinstance(value, list) else value for name, value in report.items()}


def probe_words(work: WorkRow) -> str:
    """What a probe proved, with its figures."""
    result = work.result
    offline, memory = result["offline"], result["memory"]
    return (
        f"loaded in {span(result['load_ms'])}, {reading(memory['process_loaded'])}; offline by "
        f"{', '.join(offline['applied'])}: {refusals(offline)}; "
        f"{reading(memory['reclaimed'])} came back"
    )
