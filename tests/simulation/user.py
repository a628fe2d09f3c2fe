"""The person in a story: takes a model through every gate, then loads, checks, drains, unloads and cancels.

At rest the person wants the deployment loaded, and hears from the worker that it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from typing import Any

import msgspec
import nats.errors

from domain.folding.states import DeploymentState
from schemas import subjects
from schemas.live import LiveAnswer
from services.client.live import Holding, holding
from tests.simulation.asking import REFUSED_PAUSE_S, REQUEST_S, Asker
from tests.simulation.plane import CREDENTIAL, NODE
from tests.simulation.storage import Disk
from tests.simulation.watch import Watch

DEPLOYMENTS = 2
FILES = [{"path": "model.safetensors", "size": 100, "sha256": "ab" * 32}]
LIMITS = {"load_ms": 25_000, "health_ms": 5_000, "drain_ms": 5_000, "unload_ms": 5_000}
PROFILE = {"adapter": "sentence_transformers", "task": "embedding", "limits": LIMITS}
# what is done, and how often in proportion
HABITS = {"load": 6, "health": 2, "drain": 2, "unload": 2, "cancel": 2, "live": 2, "disable": 0.4, "revoke": 0.4}


class User:
    def __init__(self, asker: Asker, watch: Watch, disk: Disk, rng: random.Random) -> None:
        self._asker, self._watch, self._disk, self._rng = asker, watch, disk, rng
        self.rest = asyncio.Event()
        self.waiting_for = "nothing"
        self._candidate = {"candidate_id": "", "candidate_digest": ""}

    async def go(self) -> None:
        await self._enrol()
        deployments = await self._gates()
        while not self.rest.is_set():
            await self._something(self._rng.choice(deployments))
            await asyncio.sleep(self._rng.uniform(0.05, 1.5))
        await self._serving_again(deployments[0])

    async def _enrol(self) -> None:
        digest = hashlib.sha256(CREDENTIAL.encode()).hexdigest()
        await self._asker.accepted("node.enrol", node_id=NODE, credential_sha256=digest)

    async def _gates(self) -> list[str]:
        """From files to deployments; each gate again until it is passed."""
        ask = self._asker
        artifact = (await ask.accepted("artifact.register", name="m", files=FILES))["artifact_id"]
        await self._done("artifact.verify", artifact_id=artifact, node_id=NODE, location="m")
        assessment = await self._done(
            "assessment.request", artifact_id=artifact, node_id=NODE, adapter=PROFILE["adapter"], task=PROFILE["task"]
        )
        profile = (await ask.accepted("profile.create", assessment_id=assessment, profile=PROFILE))["profile_id"]
        probe = await self._done("probe.request", assessment_id=assessment, profile_id=profile)
        self._candidate = {"candidate_id": probe, "candidate_digest": self._state(f"candidate-{probe}").digest}
        await ask.accepted("approval.grant", **self._candidate)
        made = []
        for number in range(DEPLOYMENTS):
            result = await ask.accepted(
                "deployment.create", name=f"d{number}", capability=PROFILE["task"], node_ids=[NODE], **self._candidate
            )
            made.append(result["deployment_id"])
        return made

    async def _something(self, deployment: str) -> None:
        verb = self._rng.choices(list(HABITS), list(HABITS.values()))[0]
        match verb:
            case "live":
                await self._ask_live(deployment)
            case "cancel":
                open_work = [work for work in self._watch.works() if not work.ended]
                if open_work:
                    await self._asker.command("work.cancel", work_id=self._rng.choice(open_work).work_id)
            case "disable":
                await self._asker.command("node.disable", node_id=NODE)
                await asyncio.sleep(self._rng.uniform(0.1, 3.0))
                await self._asker.accepted("node.enable", node_id=NODE)
            case "revoke":
                await self._asker.command("approval.revoke", candidate_id=self._candidate["candidate_id"])
                await asyncio.sleep(self._rng.uniform(0.1, 3.0))
                await self._asker.accepted("approval.grant", **self._candidate)
            case _:
                await self._asker.command("job.request", deployment_id=deployment, node_id=NODE, verb=verb)

    async def _serving_again(self, deployment: str) -> None:
        """After everything was mended: the deployment can be loaded, and its worker says so."""
        await self._asker.accepted("node.enable", node_id=NODE)
        await self._asker.accepted("approval.grant", **self._candidate)
        while True:
            self.waiting_for = f"{deployment} to be loaded, it is {self._residency(deployment)}"
            if self._residency(deployment) == "resident" and await self._is_loaded(deployment):
                break
            verb = "unload" if self._residency(deployment) in ("failed", "draining", "resident") else "load"
            await self._asker.command("job.request", deployment_id=deployment, node_id=NODE, verb=verb)
            await asyncio.sleep(1.0)
        while any(not work.ended for work in self._watch.works()):
            self.waiting_for = "open work to end"
            await asyncio.sleep(0.5)
        while not await self._worker_and_log_agree():
            self.waiting_for = "worker and log to agree on what is held"
            await asyncio.sleep(0.5)
        self.waiting_for = "nothing"

    async def _worker_and_log_agree(self) -> bool:
        answer = await self._ask_worker()
        states = [state for state in self._watch.states.values() if isinstance(state, DeploymentState)]
        logged = {s.deployment_id for s in states if s.residency(NODE) in ("resident", "draining")}
        return answer is not None and logged == {resident.entry.deployment_id for resident in answer.residents}

    async def _is_loaded(self, deployment: str) -> bool:
        told = await self._ask_live(deployment)
        return told is not None and told.state == "loaded"

    async def _ask_live(self, deployment: str) -> Holding | None:
        """What may be said of the deployment now: from the tables, and what its worker answers."""
        tables, position, asked_s = self._disk.tables, self._disk.tracked, asyncio.get_running_loop().time()
        deployed = tables.get(("deployment", deployment))
        node, residency = tables.get(("node", NODE)), tables.get(("residency", f"{deployment}.{NODE}"))
        if deployed is None:
            return None
        answer = await self._ask_worker()
        told = holding(deployed, NODE, node, residency, answer, 0)  # type: ignore[arg-type]
        self._watch.told(told, answer, position, asked_s)
        return told

    async def _ask_worker(self) -> LiveAnswer | None:
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            answer = await self._asker.nc.request(subjects.live_subject(NODE), b"", timeout=REQUEST_S)
            return msgspec.json.decode(answer.data, type=LiveAnswer)
        return None

    async def _done(self, command: str, /, **fields: Any) -> str:
        """Request work until one of its items completes; the id of that one."""
        while True:
            reply = await self._asker.command(command, **fields)
            if reply.outcome == "accepted":
                work_id = reply.result["work_id"]
                self.waiting_for = f"{command} {work_id}"
                while not self._state(f"work-{work_id}").ended:  # noqa: ASYNC110 - virtual time costs nothing
                    await asyncio.sleep(0.2)
                if self._state(f"work-{work_id}").stage == "completed":
                    return str(work_id)
            await asyncio.sleep(REFUSED_PAUSE_S)

    # The person reads the log: what the tables say is checked elsewhere.

    def _state(self, stream: str) -> Any:
        return self._watch.states[stream]

    def _residency(self, deployment: str) -> str:
        state: DeploymentState = self._state(f"deployment-{deployment}")
        return state.residency(NODE)
