"""The node agent: connects, registers, runs one session after the other, answers "what do you hold now".

Registration is tried until it succeeds, with a bounded backoff: a worker outlives its control plane. It is
given up only where trying again can't help (wrong credential, node not enrolled, or the connection to the bus closed
for good: nats-py reconnects after a break, not after an error that the server tells). Each session has a new
generation and a new signing key. The live answer comes from the current session, and says
`serving: false` after that session's end and until the next begins.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any

import msgspec
import nats
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas.codes import Code, Refusal
from schemas.commands import LeaveWorker, RegisterWorker
from schemas.live import LiveAnswer
from schemas.subjects import live_subject, node_inbox
from worker.adapters.registry import capabilities
from worker.cancellation import end_tasks
from worker.clock import local_ms
from worker.duty.control import Control, NatsControl, Unreachable, new_command_id
from worker.duty.message_size import check_size
from worker.duty.outbox import public_key
from worker.environment import runtime_environment
from worker.launch.launching import Launcher, beginning
from worker.launch.processes import sweep
from worker.sandbox.decoys import Decoys
from worker.session import End, Granted, Session
from worker.settings import WorkerSettings

EXIT_STOPPED = 0
EXIT_FAILED = 1  # a defect, as with any error that nobody caught
EXIT_FENCED = 3  # a newer worker runs on this node
EXIT_REFUSED = 4  # the control plane does not know this node or its credential
EXIT_CLOSED = 6  # the NATS server closed the connection with an error, say since this node's login is gone

REGISTER_MS_MAX = 5_000.0
BACKOFF_SECONDS_MIN = 0.1
BACKOFF_SECONDS_MAX = 5.0
CONNECT_SECONDS_MAX = 5
RECONNECT_SECONDS = 0.25
LEAVE_MS_MAX = 2_000.0
_HOPELESS = frozenset({Code.CREDENTIAL_REFUSED, Code.UNKNOWN_STREAM, Code.COMMAND_MALFORMED, Code.MESSAGE_TOO_LARGE})
_EXITS: dict[End, int] = {
    "stopped": EXIT_STOPPED, "fenced": EXIT_FENCED, "closed": EXIT_CLOSED, "failed": EXIT_FAILED
}  # fmt: skip
_log = structlog.get_logger(__name__)


class Refused(Exception):
    """The control plane will not register this worker; the message says why."""


class Closed(Exception):
    """The connection to the bus is closed for good; the message says why."""


class Agent:
    """One worker process."""

    def __init__(self, settings: WorkerSettings, stop: asyncio.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._boot_id = uuid.uuid4().hex
        self._session: Session | None = None
        self._last: LiveAnswer | None = None

    async def run(self) -> int:
        """Returns the process's exit code."""
        settings = self._settings
        settings.state.mkdir(parents=True, exist_ok=True)
        ended = await asyncio.to_thread(sweep, settings.state / "children")
        _log.info("worker_starts", node_id=settings.node_id, boot_id=self._boot_id, leftovers_ended=ended)
        client = await self._until_stop(connect(settings))
        if client is None:
            return EXIT_STOPPED
        decoys = await Decoys.open(settings.state)
        launcher = Launcher.open(settings.state, beginning() if settings.fork_server else None, ends_strays=True)
        try:
            await self._listen(client)
            return await self._sessions(client, decoys, launcher)
        finally:
            await launcher.close()
            await decoys.close()
            await client.close()

    async def _sessions(self, client: Client, decoys: Decoys, launcher: Launcher) -> int:
        control = NatsControl(client)
        environment = await asyncio.to_thread(runtime_environment)
        while True:
            key = Ed25519PrivateKey.generate()
            try:
                granted = await self._until_stop(self._register(client, control, key, environment))
            except Refused as refused:
                _log.error("registration_refused", reason=str(refused))
                return EXIT_REFUSED
            except Closed as closed:
                _log.error("bus_closed", error=str(closed))
                return EXIT_CLOSED
            if granted is None:
                return EXIT_STOPPED
            _log.info("registered", node_id=self._settings.node_id, generation=granted.generation)
            session = Session(
                self._settings, client, control, granted, key, self._boot_id, environment, decoys, launcher
            )
            self._session = session
            end = await session.run(self._stop)
            self._session, self._last = None, session.live()
            if end in {"stopped", "failed"}:
                await self._leave(control, session.generation)
            if end in _EXITS:
                return _EXITS[end]

    async def _until_stop(self, work: Any) -> Any:
        """The result of the coroutine, or None where the stop came first."""
        task, stopping = asyncio.ensure_future(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            await end_tasks([task, stopping])

    async def _register(self, client: Client, control: Control, key: Ed25519PrivateKey, environment: Any) -> Granted:
        """Ask until granted. Each try is a new command: the highest generation it makes is the one that counts."""
        pause = BACKOFF_SECONDS_MIN
        while True:
            asked_ms = local_ms()
            try:
                reply = await control.command("worker.register", self._registration(key, environment), REGISTER_MS_MAX)
            except Unreachable as error:
                if client.is_closed:
                    raise Closed(repr(client.last_error)) from error
                _log.info("registration_unanswered", error=str(error))
            else:
                if reply.outcome == "accepted":
                    return msgspec.convert({**reply.result, "asked_ms": asked_ms}, Granted)
                _log.warning("registration_rejected", code=reply.code, reason=reply.message)
                if reply.code in _HOPELESS:
                    raise Refused(f"{reply.code}: {reply.message}")
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads retries, keeps no secret
            pause = min(pause * 2, BACKOFF_SECONDS_MAX)

    def _registration(self, key: Ed25519PrivateKey, environment: Any) -> RegisterWorker:
        return RegisterWorker(
            command_id=new_command_id(),
            actor=f"worker:{self._settings.node_id}",
            node_id=self._settings.node_id,
            credential=self._settings.credential,
            boot_id=self._boot_id,
            environment=environment,
            capabilities=capabilities(),
            session_public_key=public_key(key),
            artifact_root=str(self._settings.artifact_root),
            inventory=[],  # children die with their worker, so a new generation holds nothing
        )

    async def _leave(self, control: Control, generation: str) -> None:
        command = LeaveWorker(
            command_id=new_command_id(),
            actor=f"worker:{self._settings.node_id}",
            node_id=self._settings.node_id,
            generation=generation,
            credential=self._settings.credential,
        )
        try:
            reply = await control.command("worker.leave", command, LEAVE_MS_MAX)
            _log.info("left", outcome=reply.outcome, code=reply.code)
        except Unreachable as error:
            _log.warning("leave_unanswered", error=str(error))

    async def _listen(self, client: Client) -> None:
        async def answer(message: Msg) -> None:
            await self._answer_live(client, message)

        await client.subscribe(live_subject(self._settings.node_id), cb=answer)

    async def _answer_live(self, client: Client, message: Msg) -> None:
        answer = self._session.live() if self._session is not None else self._last
        if answer is None or not message.reply:
            return
        body = msgspec.json.encode(answer)
        try:
            check_size(client, message.reply, body)
        except Refusal as refusal:  # a part of it would say that the rest is gone; silence is `unknown`
            _log.error("live_answer_not_sent", reason=refusal.message)
            return
        await message.respond(body)


async def connect(settings: WorkerSettings) -> Client:
    """A connection that comes back by itself, however long the bus is away. Its inboxes are this node's own."""
    options: dict[str, Any] = {}
    if settings.nats_user is not None:
        options = {"user": settings.nats_user, "password": settings.nats_password}

    async def on_error(error: Exception) -> None:
        _log.warning("bus_error", error=repr(error))

    async def on_disconnected() -> None:
        _log.warning("bus_disconnected")

    async def on_reconnected() -> None:
        _log.info("bus_reconnected")

    return await nats.connect(
        settings.nats_url,
        name=f"worker-{settings.node_id}",
        inbox_prefix=node_inbox(settings.node_id),
        connect_timeout=CONNECT_SECONDS_MAX,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_SECONDS,
        error_cb=on_error,
        disconnected_cb=on_disconnected,
        reconnected_cb=on_reconnected,
        **options,
    )
