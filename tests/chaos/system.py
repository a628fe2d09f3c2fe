"""A running system to break: an embedded plane, its worker behind a proxy, and MiniLM deployed where it is wanted.

`System` is the person at the keyboard: it asks again under the same command id when no answer comes, loads the model
again when the log says that it is gone, and calls the system serving when a command went the whole way (accepted, in
EVENTS, in the tables) and the model, where there is one, answered an invocation.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.serving.deployed import deployed
from projections.rows import DeploymentRow, ResidencyRow, WorkRow
from schemas import subjects
from schemas.codes import Code
from schemas.events import Event, WorkerRegistered, decode_event
from schemas.live import LiveAnswer
from schemas.queries import Query, QueryReply
from schemas.replies import Reply
from schemas.serving import Answer, ServeAnswer
from schemas.tasks.text import EmbedRequest
from services.cli.demo.command import model_folder
from services.client import Client as TenureClient
from services.embedded.nats_conf import CONTROL
from services.eventlog.postgres import PostgresLog
from services.settings import Settings
from tests.chaos.invariants import whole
from tests.chaos.plane import ChaosPlane
from tests.chaos.report import recovered
from tests.chaos.waiting import WAIT_S, eventually, found

TERMS = {"session_ms": 8_000, "beat_ms": 500, "leader_ms": 2_000, "lease_ms": 10_000}
SELF_STOP_SHARE = 0.9  # of the session's term: after that long without an answer a worker ends what it holds
NODE = "local"
REQUEST_S = 1.0
INVOKE_S = 10.0
TEXTS = ["A lease is a promise with an end."]


class System:
    def __init__(self, plane: ChaosPlane, nc: Client) -> None:
        self.plane, self.nc = plane, nc
        self.log = PostgresLog(plane.postgres_dsn)
        self.deployment: DeploymentRow | None = None

    # --- asking -------------------------------------------------------------------------------------------------

    async def command(self, name: str, /, **fields: Any) -> Reply:
        """The outcome; asked again under the same id while nobody answers, or only says that it cannot now."""
        body = msgspec.json.encode({"command_id": uuid.uuid4().hex, "actor": "chaos", **fields})

        async def ask() -> Reply | None:
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                answer = await self.nc.request(subjects.rpc_subject(name), body, timeout=REQUEST_S)
                reply = msgspec.json.decode(answer.data, type=Reply)
                return None if reply.code in (Code.UNAVAILABLE, Code.OVERLOADED, Code.CONFLICT) else reply
            return None

        return await found(ask, f"{name} has an outcome")

    async def rows(self, table: str, where: dict[str, str], position: int | None = None) -> list[dict[str, Any]] | None:
        """What the query service tells; None while it does not."""
        query = msgspec.json.encode(Query(where=where, min_position=position))
        with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
            answer = await self.nc.request(subjects.query_subject(table), query, timeout=REQUEST_S * 3)
            reply = msgspec.json.decode(answer.data, type=QueryReply)
            return None if reply.code is not None else reply.rows
        return None

    async def live(self) -> LiveAnswer | None:
        with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
            answer = await self.nc.request(subjects.live_subject(NODE), b"", timeout=REQUEST_S)
            return msgspec.json.decode(answer.data, type=LiveAnswer)
        return None

    async def serving_session(self, after: str = "0") -> LiveAnswer:
        """The word of a worker that serves, of a generation newer than `after`."""

        async def look() -> LiveAnswer | None:
            live = await self.live()
            return live if live is not None and live.serving and int(live.generation) > int(after) else None

        return await found(look, f"a worker serves with a generation after {after}")

    async def heartbeat_answered(self) -> float:
        """See one heartbeat of the worker and its answer on the bus; when that was, from where a full term counts."""
        asked: dict[str, float] = {}
        answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        async def on_beat(message: Msg) -> None:
            asked[message.reply] = time.time() * 1_000

        async def on_answer(message: Msg) -> None:
            if message.subject in asked and not answered.done():
                answered.set_result(asked[message.subject])

        seen = [await self.nc.subscribe(f"{subjects.node_inbox(NODE)}.>", cb=on_answer)]
        seen.append(await self.nc.subscribe(subjects.beat_subject(NODE), cb=on_beat))
        at_ms = await asyncio.wait_for(answered, WAIT_S)
        for subscription in seen:
            await subscription.unsubscribe()
        return at_ms

    async def work(self, work_id: str) -> WorkRow | None:
        rows = await self.rows("work", {"id": work_id})
        return msgspec.convert(rows[0], WorkRow, strict=False) if rows else None

    async def ended(self, work_id: str) -> WorkRow:
        async def look() -> WorkRow | None:
            work = await self.work(work_id)
            return work if work is not None and work.ended_at_ms is not None else None

        return await found(look, f"work {work_id} ends")

    async def leased(self, work_id: str) -> WorkRow:
        async def look() -> WorkRow | None:
            work = await self.work(work_id)
            return work if work is not None and work.lease_until_ms is not None else None

        return await found(look, f"work {work_id} is claimed")

    async def events(self, kind: type[Event]) -> list[Any]:
        """All events of this kind, from the log itself, on a fresh connection: PostgreSQL may have been killed."""
        log = PostgresLog(self.plane.postgres_dsn)
        try:
            decoded = [decode_event(row.topic, row.state) for row in await whole(log)]
        finally:
            await log.close()
        return [event for event in decoded if isinstance(event, kind)]

    # --- the model ----------------------------------------------------------------------------------------------

    async def deploy(self) -> None:
        """MiniLM through every gate, resident on the node."""
        node = await self.plane.node_alive()
        async with await TenureClient.connect(self.plane.settings, "chaos") as client:
            self.deployment = await deployed(client, node, model_folder(None))

    async def deploy_again(self) -> None:
        """Another deployment of the same candidate in place of this one: without the ends that its circuit counts."""
        before = self.deployed
        await self.serving_session()
        if await self.residency() in ("resident", "draining"):
            await self.unloaded()
        made = await self.command(
            "deployment.create", name=f"minilm-{uuid.uuid4().hex[:8]}", candidate_id=before.candidate_id,
            candidate_digest=before.candidate_digest, capability=before.capability, node_ids=before.node_ids,
        )  # fmt: skip

        async def look() -> DeploymentRow | None:
            rows = await self.rows("deployment", {"id": made.result["deployment_id"]}, made.position)
            return msgspec.convert(rows[0], DeploymentRow, strict=False) if rows else None

        self.deployment = await found(look, "the deployment is in the tables")

    @property
    def deployed(self) -> DeploymentRow:
        if self.deployment is None:
            raise RuntimeError("this system has no model")
        return self.deployment

    async def job(self, verb: str) -> str | None:
        """Ask for a job; its work id, None where there is nothing to be done or it is refused for now."""
        reply = await self.command("job.request", deployment_id=self.deployed.id, node_id=NODE, verb=verb)
        work_id = reply.result.get("work_id") if reply.outcome == "accepted" else None
        return str(work_id) if work_id is not None else None

    async def invoke(self, generation: str, timeout_s: float = INVOKE_S) -> ServeAnswer:
        subject = subjects.serve_subject(NODE, generation, self.deployed.id)
        answer = await self.nc.request(subject, msgspec.msgpack.encode(EmbedRequest(TEXTS)), timeout=timeout_s)
        return msgspec.msgpack.decode(answer.data, type=ServeAnswer)

    async def invocation_under_way(self, count: int = 1) -> None:
        """Wait until the worker has taken that many in and not answered them."""

        async def under_way() -> bool:
            live = await self.live()
            return live is not None and sum(resident.in_flight for resident in live.residents) >= count

        await eventually(under_way, f"{count} invocations are under way")

    async def residency(self) -> str:
        rows = await self.rows("residency", {"deployment_id": self.deployed.id})
        if rows is None:
            return "unknown"
        return msgspec.convert(rows[0], ResidencyRow, strict=False).state if rows else "absent"

    async def child(self) -> int:
        """The pid of the model process, on the worker's word."""

        async def look() -> int | None:
            live = await self.live()
            pids = [resident.child_pid for resident in live.residents] if live is not None else []
            return pids[0] if pids and pids[0] else None

        return await found(look, "the worker holds a model process")

    async def unloaded(self) -> None:
        work_id = await self.job("unload")
        if work_id is not None:
            assert (await self.ended(work_id)).stage == "completed"

    # --- serving again ------------------------------------------------------------------------------------------

    async def serves(self) -> str:
        """Wait until the system serves, doing what a person would; the generation that answered."""
        await self.command_goes_the_whole_way()
        return await (self._model_answers() if self.deployment is not None else self._worker_is_there())

    async def command_goes_the_whole_way(self) -> None:
        ident = f"whole-{uuid.uuid4().hex[:12]}"
        reply = await self.command("node.enrol", node_id=ident, credential_sha256="cd" * 32)
        assert reply.outcome == "accepted"

        async def published() -> bool:
            subject = subjects.event_subject(f"node-{ident}", "node.enrolled.v1")
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError):
                await self.nc.jetstream().get_last_msg(subjects.STREAM_EVENTS, subject)
                return True
            return False

        async def projected() -> bool:
            return bool(await self.rows("node", {"id": ident}, reply.position))

        await eventually(published, "the event is in EVENTS")
        await eventually(projected, "the row is in the tables")

    async def _worker_is_there(self) -> str:
        return (await self.serving_session()).generation

    async def _model_answers(self) -> str:
        async def answered() -> str | None:
            live = await self.live()
            if live is None or not live.serving:
                return None
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                answer = await self.invoke(live.generation)
                if isinstance(answer, Answer):
                    assert answer.generation == live.generation
                    return live.generation
            if await self.residency() in ("absent", "lost", "failed"):
                await self.job("load")
            return None

        return await found(answered, "the model answers")

    async def kept(self, generation: str, later: str, heard_at_ms: float) -> bool:
        """Whether the worker went on; if not, no later heartbeat was answered for as long as it may hold on."""
        if later == generation:
            return True
        seen = await self.events(WorkerRegistered)
        successor = next(event for event in seen if event.generation == str(int(generation) + 1))
        assert successor.at_ms - heard_at_ms >= TERMS["session_ms"] * SELF_STOP_SHARE - TERMS["beat_ms"]
        return False

    async def recovered(self, fault: str, since: float) -> str:
        """Wait until it serves, and note how long that took since the fault; the generation that answers."""
        generation = await self.serves()
        recovered(fault, time.monotonic() - since, TERMS)
        return generation


@contextlib.asynccontextmanager
async def system(*, model: bool) -> AsyncIterator[System]:
    """A system that runs and serves."""
    with tempfile.TemporaryDirectory(prefix="tenure-chaos-", ignore_cleanup_errors=True) as folder:
        plane = ChaosPlane(Settings(data_dir=Path(folder), log_level="warning", **TERMS))  # type: ignore[arg-type]
        await plane.proxy.start()
        try:
            async with plane:
                user, password = plane.nats_login(CONTROL)
                nc = await nats.connect(
                    plane.nats_url, user=user, password=password, max_reconnect_attempts=-1, reconnect_time_wait=0.1,
                    error_cb=_unheard,
                )  # fmt: skip
                made = System(plane, nc)
                try:
                    if model:
                        await made.deploy()
                    await made.serves()
                    yield made
                finally:
                    await nc.close()
                    await made.log.close()
        finally:
            await plane.proxy.close()


async def _unheard(error: Exception) -> None:
    """Errors are expected here; what matters is asserted at the end."""
