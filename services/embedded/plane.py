"""Plane: everything Tenure needs on one machine, from one data folder, in this process and its children.

    async with Plane(settings) as plane:      # or start() ... stop()
        plane.kill("worker")                  # what dies is started again, while keep() or step() runs
        plane.pid("control")

The way up: lock the folder -> PostgreSQL and NATS (unless the settings name others) -> `run/endpoints.json` (0600) ->
migrate -> the services -> enrol the local node -> the worker. The way down is the reverse. Data, secrets, the NATS
port and the node's credential stay in the folder, so a stop and a start, or a `kill -9` and a start, change nothing.

Each process gets the settings as `TENURE_*` variables, and only the secrets it needs: the worker gets its node's NATS
login and credential, no database; the services get the control plane's. A further node's login is taken up while
everything runs (see `node_login`).
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from projections.rows import NodeRow
from schemas.codes import Code, Refusal
from services.client import Client
from services.embedded.credentials import ensure_secret, secret_dir, write_private
from services.embedded.data_lock import DataLock
from services.embedded.enrol import enrol
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL, OPERATOR, node_user
from services.embedded.postgres import PostgresServer
from services.embedded.supervisor import STEP_S, ProcessSpec, Program, Supervisor, Tell, Unit, module_argv, module_env
from services.settings import ENDPOINTS_FILE, Settings

SERVICES = ("control", "relay", "projector", "query")
WORKER_PROCESS = "worker"
CONTROL_ANSWERS_S = 120.0  # a long log is folded first
NODE_ALIVE_S = 120.0
WORKER_GRACE_S = 20.0  # it unloads what it holds
CREDENTIAL_FILE = Path("secrets") / "node-local.credential"
ACTOR = "tenure-up"


def _silent(_name: str, _what: str) -> None:
    """No progress wanted."""


class Plane:
    """`specs` replaces the processes (for tests); `tell(name, what)` is called with each thing that happens."""

    def __init__(self, settings: Settings, *, specs: Sequence[ProcessSpec] | None = None, tell: Tell = _silent) -> None:
        self.settings = settings.model_copy(update={"data_dir": settings.data_dir.resolve()})
        self.data_dir = self.settings.data_dir
        self.log_dir = self.data_dir / "logs"
        self._specs = specs
        self._tell = tell
        self._lock = DataLock(self.data_dir)
        self._supervisor = Supervisor(self.data_dir / "run", tell)
        self._postgres: PostgresServer | None = None
        self._nats: NatsServer | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._starting = False

    async def __aenter__(self) -> Plane:
        await self.start()
        self._keeper = asyncio.create_task(self.keep(), name="plane")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._keeper:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        await self.stop()

    async def start(self) -> None:
        """Bring everything up, or nothing: a failure stops what was started and is raised as a Refusal."""
        self._lock.take()
        self._starting = True
        try:
            await self._start_servers()
            self._write_endpoints()
            await self._migrate()
            specs = list(self._specs) if self._specs is not None else self._services()
            for spec in specs:
                await self._supervisor.add(Program(spec, self.log_dir))
            if self._specs is None:
                await self._enrol()
                await self._supervisor.add(Program(self._worker(), self.log_dir))
        except BaseException:
            await self.stop()
            raise
        finally:
            self._starting = False

    async def stop(self) -> None:
        """Worker first, servers last. What was written stays."""
        if not self._lock.held:
            return
        await self._supervisor.stop()
        (self.data_dir / ENDPOINTS_FILE).unlink(missing_ok=True)
        self._lock.release()

    async def step(self) -> None:
        """Look after everything once."""
        await self._supervisor.step()
        if self._nats is not None and self._nats.follow_logins():
            self._tell("nats", "was told to read its logins again")

    async def keep(self) -> None:
        """Look after everything until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(STEP_S)

    def pid(self, name: str) -> int | None:
        """The pid of `postgres`, `nats`, a service or `worker`; None while it is down."""
        return self._supervisor.pid(name)

    def names(self) -> list[str]:
        return self._supervisor.names()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process, SIGKILL unless told otherwise. It is started again if that ends it."""
        self._supervisor.child(name).signal(number)

    async def node_alive(self, timeout_s: float = NODE_ALIVE_S) -> NodeRow:
        """Wait until the local node's worker has a living session, as the query service tells it."""
        node: NodeRow | None = None

        async def look() -> bool:
            nonlocal node
            client = await Client.connect(self.settings, ACTOR)
            try:
                rows = await client.rows(NodeRow, {"id": self.settings.node_id})
            finally:
                await client.close()
            node = next((row for row in rows if row.session == "alive"), None)
            return node is not None

        await self._until(look, timeout_s, f"the worker of node {self.settings.node_id} did not register")
        assert node is not None  # noqa: S101 - `look` was true
        return node

    async def _start_servers(self) -> None:
        wanted: list[Unit] = []
        if self.settings.postgres_dsn is None:
            self._postgres = PostgresServer(self.data_dir, log_dir=self.log_dir)
            wanted.append(self._postgres)
        if self.settings.nats_url is None:
            self._nats = NatsServer(self.data_dir, log_dir=self.log_dir)
            await self._nats.add_node(self.settings.node_id)
            wanted.append(self._nats)
        for unit in wanted:
            self._tell(unit.child.name, "starting")
            await self._supervisor.add(unit)

    @property
    def postgres_dsn(self) -> str:
        return self.settings.postgres_dsn or (self._postgres.dsn() if self._postgres else "")

    @property
    def nats_url(self) -> str:
        return self.settings.nats_url or (self._nats.address if self._nats else "")

    def nats_login(self, user: str) -> tuple[str | None, str | None]:
        """Name and password of one of our NATS users; with a NATS of somebody else's, what the settings say."""
        if self._nats is None:
            return self.settings.nats_user, self.settings.nats_password
        return user, self._nats.password(user)

    def _write_endpoints(self) -> None:
        """What other commands need to reach this plane. It holds the operator's password, hence mode 0600."""
        user, password = self.nats_login(OPERATOR)
        self.settings.artifacts.mkdir(parents=True, exist_ok=True)
        known = {
            "postgres_dsn": self.postgres_dsn,
            "nats_url": self.nats_url,
            "artifact_root": str(self.settings.artifacts),
            "nats_operator_user": user,
            "nats_operator_password": password,
        }
        write_private(self.data_dir / ENDPOINTS_FILE, json.dumps(known, indent=1))

    async def _migrate(self) -> None:
        from services.eventlog.migrate import migrate

        await asyncio.to_thread(migrate, self.postgres_dsn)
        self._tell("migrate", "the log's tables are there")

    def _settings_env(self, login: str) -> dict[str, str]:
        """The settings as variables, without what only some may know."""
        user, password = self.nats_login(login)
        known = {
            **self.settings.model_dump(mode="json", exclude={"postgres_dsn", "credential_file"}),
            "nats_url": self.nats_url,
            "nats_user": user,
            "nats_password": password,
            "artifact_root": str(self.settings.artifacts),
        }
        return {f"TENURE_{name.upper()}": str(value) for name, value in known.items() if value is not None}

    def _services(self) -> list[ProcessSpec]:
        env = module_env({**self._settings_env(CONTROL), "TENURE_POSTGRES_DSN": self.postgres_dsn})
        return [ProcessSpec(name, module_argv(f"services.{name}"), env) for name in SERVICES]

    def _worker(self) -> ProcessSpec:
        login = self._settings_env(node_user(self.settings.node_id))
        env = module_env({**login, "TENURE_CREDENTIAL_FILE": str(self.credential_file)})
        return ProcessSpec(WORKER_PROCESS, module_argv("worker"), env, grace_s=WORKER_GRACE_S)

    @property
    def credential_file(self) -> Path:
        return self.settings.credential_file or self.data_dir / CREDENTIAL_FILE

    async def _enrol(self) -> None:
        """Make the node known by the SHA-256 of its credential. Known already with the same one is fine."""
        secret_dir(self.data_dir / "secrets")
        credential = ensure_secret(self.credential_file)

        async def ask() -> bool:
            await enrol(self.settings, credential)
            return True

        await self._until(ask, CONTROL_ANSWERS_S, "the control plane did not answer")
        self._tell("control", f"answers; node {self.settings.node_id} is enrolled")

    async def _until(self, ask: Callable[[], Awaitable[bool]], timeout_s: float, what: str) -> None:
        """Repeat `ask` until it gives True, looking after the processes meanwhile. UNAVAILABLE is asked again."""
        deadline = time.monotonic() + timeout_s
        reason = ""
        while True:
            try:
                if await ask():
                    return
            except Refusal as refusal:
                if refusal.code is not Code.UNAVAILABLE:
                    raise
                reason = f": {refusal.message}"
            if time.monotonic() >= deadline:
                raise Refusal(Code.UNAVAILABLE, f"{what} within {timeout_s:g} s{reason}; see {self.log_dir}")
            if self._starting:
                await self.step()
            await asyncio.sleep(STEP_S)
