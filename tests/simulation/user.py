"""The person in a story: takes a model through every gate, then loads, checks, drains, unloads and cancels.

Every command is sent again under its id until it has an outcome, and every repetition must give the same one.
At rest the person wants the deployment loaded, and hears from the worker that it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import Any

import msgspec
import nats.errors

from domain.folding.states import DeploymentState, NodeState, WorkState
from schemas import subjects
from schemas.codes import Code
from schemas.live import LiveAnswer
from schemas.replies import Reply
from tests.simulation.checkers import Violation
from tests.simulation.loop import Process

NODE = "n1"
CREDENTIAL = "credential-of-the-simulated-node"
DEPLOYMENTS = 2
REQUEST_S = 1.0
RETRY = frozenset({Code.UNAVAILABLE, Code.OVERLOADED, Code.CONFLICT})
FILES = [{"path": "model.safetensors", "size": 100, "sha256": "ab" * 32}]
LIMITS = {"load_ms": 10_000, "health_ms": 5_000, "drain_ms": 5_000, "unload_ms": 5_000}
PROFILE = {"adapter": "sentence_transformers", "task": "embedding", "limits": LIMITS}


class User:
    def __init__(self, story: Any) -> None:
        self.story = story
        self.nc = story.client(Process("user"))
        self.rest = asyncio.Event()
        self.waiting_for = "nothing"
        self._outcomes: dict[str, tuple[str, str]] = {}
        self._number = 0

    async def go(self) -> None:
        await self._enrol()
        deployments = await self._gates()
        while not self.rest.is_set():
            await self._something(self.story.rng.choice(deployments))
            await asyncio.sleep(self.story.rng.uniform(0.05, 1.5))
        await self._serving_again(deployments[0])

    async def _enrol(self) -> None:
        digest = hashlib.sha256(CREDENTIAL.encode()).hexdigest()
        await self._accepted("node.enrol", node_id=NODE, credential_sha256=digest)

    async def _gates(self) -> list[str]:
        """From files to deployments; each gate again until it is passed."""
        artifact = (await self._accepted("artifact.register", name="m", files=FILES))["artifact_id"]
        await self._done("artifact.verify", artifact_id=artifact, node_id=NODE, location="m")
        assessment = await self._done(
            "assessment.request", artifact_id=artifact, node_id=NODE, adapter=PROFILE["adapter"], task=PROFILE["task"]
        )
        profile = (await self._accepted("profile.create", assessment_id=assessment, profile=PROFILE))["profile_id"]
        probe = await self._done("probe.request", assessment_id=assessment, profile_id=profile)
        digest = self._state(f"candidate-{probe}").digest
        await self._accepted("approval.grant", candidate_id=probe, candidate_digest=digest)
        made = []
        for number in range(DEPLOYMENTS):
            result = await self._accepted(
                "deployment.create", name=f"d{number}", candidate_id=probe, candidate_digest=digest,
                capability=PROFILE["task"], node_ids=[NODE],
            )  # fmt: skip
            made.append(result["deployment_id"])
        return made

    async def _something(self, deployment: str) -> None:
        verb = self.story.rng.choice(("load", "load", "load", "health", "drain", "unload", "cancel", "live", "disable"))
        if verb == "live":
            await self._ask_live()
        elif verb == "cancel":
            open_work = [w for w in self._works() if not w.ended]
            if open_work:
                await self._command("work.cancel", work_id=self.story.rng.choice(open_work).work_id)
        elif verb == "disable":
            if self.story.rng.random() < 0.15:
                await self._command("node.disable", node_id=NODE)
                await asyncio.sleep(self.story.rng.uniform(0.1, 3.0))
                await self._accepted("node.enable", node_id=NODE)
        else:
            await self._command("job.request", deployment_id=deployment, node_id=NODE, verb=verb)

    async def _serving_again(self, deployment: str) -> None:
        """After everything was mended: the deployment can be loaded, and its worker says so."""
        await self._accepted("node.enable", node_id=NODE)
        while True:
            self.waiting_for = f"{deployment} to be loaded, it is {self._residency(deployment)}"
            if self._residency(deployment) == "resident" and await self._told_loaded(deployment):
                break
            verb = "unload" if self._residency(deployment) in ("failed", "draining", "resident") else "load"
            await self._command("job.request", deployment_id=deployment, node_id=NODE, verb=verb)
            await asyncio.sleep(1.0)
        while any(not work.ended for work in self._works()):
            self.waiting_for = "open work to end"
            await asyncio.sleep(0.5)
        while not await self._worker_and_log_agree():
            self.waiting_for = "worker and log to agree on what is held"
            await asyncio.sleep(0.5)
        self.waiting_for = "nothing"

    async def _worker_and_log_agree(self) -> bool:
        answer = await self._ask_live()
        states = [state for state in self._fold().values() if isinstance(state, DeploymentState)]
        logged = {s.deployment_id for s in states if s.residency(NODE) in ("resident", "draining")}
        return answer is not None and logged == {resident.entry.deployment_id for resident in answer.residents}

    async def _told_loaded(self, deployment: str) -> bool:
        answer = await self._ask_live()
        node: NodeState = self._state(f"node-{NODE}")
        return (
            answer is not None
            and answer.serving
            and answer.generation == node.generation
            and any(r.entry.deployment_id == deployment and r.entry.state == "resident" for r in answer.residents)
        )

    async def _ask_live(self) -> LiveAnswer | None:
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            answer = await self.nc.request(subjects.live_subject(NODE), b"", timeout=REQUEST_S)
            told = msgspec.json.decode(answer.data, type=LiveAnswer)
            for resident in told.residents if told.serving else ():
                if resident.entry.state == "resident" and resident.entry.generation != told.generation:
                    raise Violation("a worker claims a resident of another generation")
            return told
        return None

    async def _done(self, command: str, /, **fields: Any) -> str:
        """Request work until one of its items completes; the id of that one."""
        while True:
            reply = await self._command(command, **fields)
            if reply.outcome == "accepted":
                work_id = reply.result["work_id"]
                self.waiting_for = f"{command} {work_id}"
                while not self._state(f"work-{work_id}").ended:  # noqa: ASYNC110 - virtual time costs nothing
                    await asyncio.sleep(0.2)
                if self._state(f"work-{work_id}").stage == "completed":
                    return str(work_id)
            await asyncio.sleep(0.5)

    async def _accepted(self, command: str, /, **fields: Any) -> dict[str, Any]:
        while True:
            reply = await self._command(command, **fields)
            if reply.outcome == "accepted":
                return reply.result
            await asyncio.sleep(0.5)

    async def _command(self, command: str, /, **fields: Any) -> Reply:
        """Send until there is an outcome; sometimes once more, which must give the same."""
        self._number += 1
        ident = f"user-{self._number}"
        body = msgspec.json.encode({"command_id": ident, "actor": "user", **fields})
        self.waiting_for = f"an outcome of {command}"
        while True:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                answer = await self.nc.request(subjects.rpc_subject(command), body, timeout=REQUEST_S)
                reply = msgspec.json.decode(answer.data, type=Reply)
                if reply.code not in RETRY:
                    self._compare(ident, reply)
                    if self.story.rng.random() > 0.1:
                        return reply
            await asyncio.sleep(0.1)

    def _compare(self, ident: str, reply: Reply) -> None:
        """7: one outcome for each command id."""
        told = (reply.outcome, repr((reply.code, reply.result)))
        if self._outcomes.setdefault(ident, told) != told:
            raise Violation(f"command {ident} had the outcome {self._outcomes[ident]} and now {told}")

    # The person reads the log: what the tables say is checked elsewhere.

    def _fold(self) -> dict[str, Any]:
        return self.story.folded()

    def _state(self, stream: str) -> Any:
        return self._fold()[stream]

    def _works(self) -> list[WorkState]:
        return [state for state in self._fold().values() if isinstance(state, WorkState)]

    def _residency(self, deployment: str) -> str:
        state: DeploymentState = self._state(f"deployment-{deployment}")
        return state.residency(NODE)
