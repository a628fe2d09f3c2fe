"""One resident: a deployment in this worker, with its model process, its intake and its state."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from schemas.codes import Code, Refusal
from schemas.live import ResidentState
from schemas.profiles import RuntimeProfile
from worker.clock import epoch_ms
from worker.model.loading import LoadedModel
from worker.serving.intake import Intake


class Resident:
    """One deployment in this worker. `work_id` and `attempt` are those of the load that made it."""

    def __init__(
        self, deployment_id: str, artifact_id: str, profile_id: str, profile: RuntimeProfile, work_id: str, attempt: int
    ) -> None:
        self.deployment_id = deployment_id
        self.artifact_id = artifact_id
        self.profile_id = profile_id
        self.profile = profile
        self.work_id = work_id
        self.attempt = attempt
        self.state: ResidentState = "loading"
        self.since_ms = epoch_ms()
        self.model: LoadedModel | None = None
        self.intake: Intake | None = None
        # The outcome of loading: None, a Refusal, or cancelled where the load was given up.
        self.loaded: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.measured: tuple[float, int | None] | None = None

    @property
    def running(self) -> LoadedModel:
        """Its model; raises Refusal while there is none."""
        if self.model is None:
            raise Refusal(Code.NOT_RESIDENT, f"deployment `{self.deployment_id}` is not resident on this worker")
        return self.model

    @property
    def invocations(self) -> int:
        return self.intake.invocations if self.intake is not None else 0

    def is_same(self, other: Resident) -> bool:
        return (self.artifact_id, self.profile_id) == (other.artifact_id, other.profile_id)

    def set_state(self, state: ResidentState) -> None:
        self.state, self.since_ms = state, epoch_ms()


class Drain(Struct, frozen=True, eq=False):
    """How draining went: what was in flight at its beginning, and what still was at its end."""

    resident: Resident
    in_flight: int
    left: int
    waited_ms: float
