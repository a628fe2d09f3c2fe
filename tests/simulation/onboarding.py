"""The gates, as a person takes a model through them: from files to deployments, each gate again until it is passed."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.asking import REFUSED_PAUSE_S, Asker
from tests.simulation.plane import NODE
from tests.simulation.watch import Watch

FILES = [{"path": "model.safetensors", "size": 100, "sha256": "ab" * 32}]
LIMITS = {"load_ms": 25_000, "health_ms": 5_000, "drain_ms": 5_000, "unload_ms": 5_000}
POLL_S = 0.2


class Candidate:
    """What was proven of one adapter and task, and the deployments of it."""

    def __init__(self, candidate_id: str, digest: str) -> None:
        self.named = {"candidate_id": candidate_id, "candidate_digest": digest}
        self.deployments: list[str] = []


class Onboarding:
    def __init__(self, asker: Asker, watch: Watch) -> None:
        self._asker, self._watch = asker, watch
        self._artifact = ""
        self._made = 0

    async def files(self) -> None:
        self._artifact = (await self._asker.accepted("artifact.register", name="m", files=FILES))["artifact_id"]
        await self._done("artifact.verify", artifact_id=self._artifact, node_id=NODE, location="m")

    async def candidate(self, adapter: str, task: str, device: str = "cpu") -> Candidate:
        assessment = await self.assess(adapter, task)
        profile = {"adapter": adapter, "task": task, "device": device, "limits": LIMITS}
        made = await self._asker.accepted("profile.create", assessment_id=assessment, profile=profile)
        probe = await self._done("probe.request", assessment_id=assessment, profile_id=made["profile_id"])
        candidate = Candidate(probe, self._watch.states[f"candidate-{probe}"].digest)
        await self._asker.accepted("approval.grant", **candidate.named)
        return candidate

    async def deploy(self, candidate: Candidate, task: str) -> None:
        self._made += 1
        result = await self._asker.accepted(
            "deployment.create", name=f"d{self._made}", capability=task, node_ids=[NODE], **candidate.named
        )
        candidate.deployments.append(result["deployment_id"])

    async def assess(self, adapter: str, task: str) -> str:
        return await self._done(
            "assessment.request", artifact_id=self._artifact, node_id=NODE, adapter=adapter, task=task
        )

    async def refused(self, adapter: str, task: str) -> None:
        """Ask for what no worker lists. That it is refused, and how, is for the checkers to see."""
        assessment = await self.assess(adapter, task)
        profile = {"adapter": adapter, "task": task, "limits": LIMITS}
        await self._asker.command("profile.create", assessment_id=assessment, profile=profile)

    async def _done(self, command: str, /, **fields: Any) -> str:
        """Request work until one of its items completes; the id of that one."""
        while True:
            reply = await self._asker.command(command, **fields)
            if reply.outcome == "accepted":
                work_id = reply.result["work_id"]
                self._asker.waiting_for = f"{command} {work_id}"
                while not self._watch.states[f"work-{work_id}"].ended:  # noqa: ASYNC110 - virtual time costs nothing
                    await asyncio.sleep(POLL_S)
                if self._watch.states[f"work-{work_id}"].stage == "completed":
                    return str(work_id)
            await asyncio.sleep(REFUSED_PAUSE_S)
