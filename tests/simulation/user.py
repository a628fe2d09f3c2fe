"""The person in a story: takes a model through every gate, then loads, checks, drains, unloads and cancels.

At rest the person wants each capability that the worker lists to be loaded, and hears from the worker that it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import random

from domain.folding.states import DeploymentState, Residency
from schemas.codes import Code
from tests.simulation.asking import Asker
from tests.simulation.looking import Looker
from tests.simulation.onboarding import Candidate, Onboarding
from tests.simulation.plane import CREDENTIAL, NODE
from tests.simulation.scenario import Scenario
from tests.simulation.watch import Watch

DEPLOYMENTS = 2
PAUSE_S = (0.05, 1.5)
# what is done, and how often in proportion
HABITS = {
    "load": 6.0, "health": 2.0, "drain": 2.0, "unload": 2.0, "cancel": 1.0, "live": 2.0, "disable": 0.4, "revoke": 0.4,
    "unlisted": 0.4, "circuit": 2.0,
}  # fmt: skip


NOTHING = Residency("absent", "0", "", "", 0, 0)
CLOSE_SHARE = 0.1
SHORT_ALONE_MAX = 5  # loads of the only deployment that find no memory; what ended may take a moment to be free


class User:
    def __init__(self, asker: Asker, looker: Looker, watch: Watch, rng: random.Random, scenario: Scenario) -> None:
        self.asker, self._looker, self._watch, self._rng = asker, looker, watch, rng
        self._scenario = scenario
        self._onboarding = Onboarding(asker, watch)
        self.rest = asyncio.Event()
        self.waiting_for = "nothing"

    async def go(self) -> None:
        digest = hashlib.sha256(CREDENTIAL.encode()).hexdigest()
        await self.asker.accepted("node.enrol", node_id=NODE, credential_sha256=digest)
        await self._onboarding.files()
        adapter, task = self._scenario.listed[0]
        candidate = await self._onboarding.candidate(adapter, task, self._scenario.device)
        for _ in range(DEPLOYMENTS):
            await self._onboarding.deploy(candidate, task)
        while not self.rest.is_set():
            await self._something(candidate, self._rng.choice(candidate.deployments))
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
        await self._everything_serves_again(candidate)

    async def _something(self, candidate: Candidate, deployment: str) -> None:
        verb = self._rng.choices(list(HABITS), list(HABITS.values()))[0]
        match verb:
            case "live":
                await self._looker.at(deployment)
            case "cancel":
                open_work = [work for work in self._watch.works() if not work.ended]
                if open_work:
                    await self.asker.command("work.cancel", work_id=self._rng.choice(open_work).work_id)
            case "disable":
                await self.asker.command("node.disable", node_id=NODE)
                await self._job(deployment, "load")
                await asyncio.sleep(self._rng.uniform(0.1, 3.0))
                await self.asker.accepted("node.enable", node_id=NODE)
            case "revoke":
                await self.asker.command("approval.revoke", candidate_id=candidate.named["candidate_id"])
                await self._job(deployment, "load")
                await asyncio.sleep(self._rng.uniform(0.1, 3.0))
                await self.asker.accepted("approval.grant", **candidate.named)
            case "unlisted":
                await self._onboarding.refused(*self._rng.choice(self._scenario.unlisted))
            case "circuit":
                await self._circuit(deployment)
            case _:
                await self._job(deployment, verb)

    async def _job(self, deployment: str, verb: str) -> None:
        await self.asker.command("job.request", deployment_id=deployment, node_id=NODE, verb=verb)

    # --- after everything was mended ------------------------------------------------------------------------

    async def _everything_serves_again(self, candidate: Candidate) -> None:
        await self.asker.accepted("node.enable", node_id=NODE)
        await self.asker.accepted("approval.grant", **candidate.named)
        listed = self._scenario.listed
        while not await self._serves_again(candidate.deployments[0]):
            candidate = await self._onboarding.candidate(*listed[0], self._scenario.device)
            await self._onboarding.deploy(candidate, listed[0][1])
        for adapter, task in listed[1:]:
            another = await self._onboarding.candidate(adapter, task)
            await self._onboarding.deploy(another, task)
            await self._serves_again(another.deployments[0])
        while any(not work.ended for work in self._watch.works()):
            self.waiting_for = "open work to end"
            await asyncio.sleep(0.5)
        while not await self._worker_and_log_agree():
            self.waiting_for = "worker and log to agree on what is held"
            await asyncio.sleep(0.5)
        self.waiting_for = "nothing"

    async def _serves_again(self, deployment: str) -> bool:
        """Load it until it is loaded. False where it can never be: more is reserved for it than the device has."""
        alone = 0
        while alone < SHORT_ALONE_MAX:
            held = self._held(deployment)
            self.waiting_for = f"{deployment} to be loaded, it is {held.state}: {held.cause}"
            told = await self._looker.at(deployment) if held.state == "resident" else None
            if told is not None and told.state == "loaded":
                return True
            if held.cause.startswith(Code.DEVICE_MEMORY_SHORT):
                alone += not await self._make_room(deployment)
                await self._job(deployment, "load")
            else:
                await self._job(deployment, "unload" if held.state in ("failed", "draining", "resident") else "load")
            await self._circuit(deployment)
            await asyncio.sleep(1.0)
        self._watch.coverage["probed again: too much was measured"] += 1
        return False

    async def _make_room(self, deployment: str) -> bool:
        """Unload all others; False where there are none."""
        states = [state for state in self._watch.states.values() if isinstance(state, DeploymentState)]
        others = [
            each.deployment_id
            for each in states
            if each.deployment_id != deployment and each.residency(NODE) not in ("absent", "lost")
        ]
        for other in others:
            await self._job(other, "unload")
        return bool(others)

    async def _circuit(self, deployment: str) -> None:
        """Close it at times; otherwise its time has to pass."""
        state: DeploymentState = self._watch.states[f"deployment-{deployment}"]
        if NODE in state.circuits and self._rng.random() < CLOSE_SHARE:
            await self.asker.command("circuit.close", deployment_id=deployment, node_id=NODE)

    async def _worker_and_log_agree(self) -> bool:
        answer = await self._looker.worker()
        states = [state for state in self._watch.states.values() if isinstance(state, DeploymentState)]
        logged = {s.deployment_id for s in states if s.residency(NODE) in ("resident", "draining")}
        return answer is not None and logged == {resident.entry.deployment_id for resident in answer.residents}

    def _held(self, deployment: str) -> Residency:
        """By the log: what the tables say is checked elsewhere."""
        state: DeploymentState = self._watch.states[f"deployment-{deployment}"]
        return state.residencies.get(NODE) or NOTHING
