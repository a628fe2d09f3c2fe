"""`tenure up` as a person runs it: the whole control plane from an empty folder, twice, and after `kill -9`.

The worker has tests of its own; these pass whether or not it can start here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from projections.rows import NodeRow
from schemas.codes import Refusal
from services.client import Client
from services.embedded import node_login
from services.embedded.nats_conf import node_user
from services.embedded.plane import Plane
from services.embedded.supervisor import SOURCE_ROOT, ProcessSpec
from services.settings import Settings

WAIT_S = 60.0
RUN_UP = (
    "import sys; from rich.console import Console; from services.embedded.up import up;"
    "from services.settings import Settings; sys.exit(up(Settings(), Console(width=200)))"
)
CONTROL_PLANE = ("postgres", "nats", "control", "relay", "projector", "query")


@contextmanager
def tenure_up(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    env = {**kept, "TENURE_DATA_DIR": str(data_dir), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_UP],
        cwd=SOURCE_ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Its lines up to the one with `text`. The test's own timeout bounds the wait."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"it ended without saying {text!r}: {''.join(lines)}")


def pids_of(data_dir: Path) -> dict[str, int]:
    known: dict[str, int] = json.loads((data_dir / "run" / "processes.json").read_text())
    return known


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


async def nodes(data_dir: Path) -> list[NodeRow]:
    """What the query service says, once it answers."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            client = await Client.connect(Settings(data_dir=data_dir))
            try:
                if rows := await client.rows(NodeRow):
                    return rows
            finally:
                await client.close()
        except Refusal:
            assert time.monotonic() < deadline, "the query service did not answer"
        await asyncio.sleep(0.05)


def test_up_from_nothing_then_stop_then_up_again(tmp_path: Path) -> None:
    with tenure_up(tmp_path) as first:
        read_until(first, "node local is enrolled")
        assert set(pids_of(tmp_path)) >= set(CONTROL_PLANE)
        endpoints = tmp_path / "run" / "endpoints.json"
        assert stat.S_IMODE(endpoints.stat().st_mode) == 0o600
        (node,) = asyncio.run(nodes(tmp_path))
        assert (node.id, node.enabled) == ("local", True)
        pids = pids_of(tmp_path)
    assert first.returncode == 0
    assert pids_of(tmp_path) == {}
    assert not endpoints.exists()
    assert all(gone(pid) for pid in pids.values())
    credential = tmp_path / "secrets" / "node-local.credential"
    assert stat.S_IMODE(credential.stat().st_mode) == 0o600
    digest = hashlib.sha256(credential.read_bytes()).hexdigest()

    with tenure_up(tmp_path) as second:
        read_until(second, "node local is enrolled")
        (again,) = asyncio.run(nodes(tmp_path))
        assert again.id == "local"
        dsn = Settings(data_dir=tmp_path).resolved().postgres_dsn
        assert dsn is not None
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    assert hashlib.sha256(credential.read_bytes()).hexdigest() == digest


def test_a_second_up_says_who_runs_and_ends_with_3(tmp_path: Path) -> None:
    with tenure_up(tmp_path) as first:
        read_until(first, "starting")
        with tenure_up(tmp_path) as second:
            out, _ = second.communicate(timeout=WAIT_S)
        assert second.returncode == 3
        assert f"pid {first.pid}" in out
        read_until(first, "node local is enrolled")
    assert first.returncode == 0


def test_nothing_survives_kill_9_and_the_next_up_carries_on(tmp_path: Path) -> None:
    with tenure_up(tmp_path) as first:
        read_until(first, "node local is enrolled")
        pids = pids_of(tmp_path)
        first.kill()
    asyncio.run(until(lambda: all(gone(pid) for pid in pids.values()), "something outlived its supervisor"))
    with tenure_up(tmp_path) as second:
        read_until(second, "node local is enrolled")
        assert [node.id for node in asyncio.run(nodes(tmp_path))] == ["local"]
    assert second.returncode == 0


def test_ctrl_c_while_starting_stops_what_was_started(tmp_path: Path) -> None:
    with tenure_up(tmp_path) as process:
        read_until(process, "nats       started")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert pids_of(tmp_path) == {}


async def test_given_servers_are_used_and_not_started(tmp_path: Path, postgres_dsn: str, nats_url: str) -> None:
    settings = Settings(data_dir=tmp_path, postgres_dsn=postgres_dsn, nats_url=nats_url)
    env = dict(os.environ)
    specs = [ProcessSpec("dummy", [sys.executable, "-c", "import time; time.sleep(3600)"], env)]
    async with Plane(settings, specs=specs) as plane:
        assert plane.names() == ["dummy"]
        first = plane.pid("dummy")
        plane.kill("dummy")
        await until(lambda: plane.pid("dummy") not in (None, first), "it was not started again")
    assert not (tmp_path / "postgres").exists()
    assert not (tmp_path / "nats").exists()


def test_a_second_node_is_enrolled_and_its_worker_let_in_while_everything_runs(tmp_path: Path) -> None:
    """The command line makes credential and login; nats-server takes the login up; the worker registers with both."""
    data_dir, credential = tmp_path, tmp_path / "n2.credential"
    with tenure_up(data_dir) as process:
        read_until(process, "node local is enrolled")
        argv = [sys.executable, "-P", "-m", "services.cli.app", "node", "enrol", "n2", "--json"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        env = {**env, "PYTHONPATH": str(SOURCE_ROOT), "TENURE_DATA_DIR": str(data_dir)}
        ran = subprocess.run(
            [*argv, "--credential-file", str(credential)], env=env, capture_output=True, text=True, timeout=WAIT_S
        )
        assert ran.returncode == 0, ran.stderr
        document = json.loads(ran.stdout)
        assert (document["node"]["id"], document["nats_user"]) == ("n2", "node-n2")
        known = Settings(data_dir=data_dir).resolved()
        env = {
            **env,
            "TENURE_DATA_DIR": str(tmp_path / "n2"),
            "TENURE_NODE_ID": "n2",
            "TENURE_NATS_URL": str(known.nats_url),
            "TENURE_NATS_USER": document["nats_user"],
            "TENURE_NATS_PASSWORD": Path(document["nats_password_file"]).read_text(),
            "TENURE_CREDENTIAL_FILE": str(credential),
            "TENURE_ARTIFACT_ROOT": str(known.artifacts),
        }
        worker = subprocess.Popen([sys.executable, "-P", "-m", "worker"], env=env, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(until_async(lambda: session_of(data_dir, "n2", "alive"), "the second worker did not register"))
        finally:
            worker.terminate()
            worker.wait(WAIT_S)


async def session_of(data_dir: Path, node_id: str, wanted: str) -> bool:
    return any((node.id, node.session) == (node_id, wanted) for node in await nodes(data_dir))


async def until_async(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


async def test_a_second_node_gets_its_login_while_the_plane_runs(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert await node_login.ensure(settings, "n2") is None  # nothing runs there
    async with Plane(settings, specs=[]) as plane:
        pid = plane.pid("nats")
        login = await node_login.ensure(settings, "n2")
        assert login is not None
        assert login == (node_user("n2"), tmp_path / "secrets" / "nats-node-n2.password")
        assert stat.S_IMODE(login.password_file.stat().st_mode) == 0o600
        assert plane.pid("nats") == pid
        password = login.password_file.read_text()
        assert await node_login.ensure(settings, "n2") == login
        assert login.password_file.read_text() == password
        plane.kill("nats")
        await until(lambda: plane.pid("nats") not in (None, pid), "it was not started again")
        assert await node_login.ensure(settings, "n2") == login  # and is let in by the new one
        given = settings.model_copy(update={"nats_url": "nats://elsewhere:4222"})
        assert await node_login.ensure(given, "n2") is None
        with pytest.raises(Refusal, match="no id of a node"):
            await node_login.ensure(settings, "../n2")


async def test_the_embedded_servers_are_started_again_when_they_die(tmp_path: Path) -> None:
    async with Plane(Settings(data_dir=tmp_path), specs=[]) as plane:
        with psycopg.connect(plane.postgres_dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        before = {name: plane.pid(name) for name in ("postgres", "nats")}
        for name in before:
            plane.kill(name)
        await until(
            lambda: all(plane.pid(name) not in (None, pid) for name, pid in before.items()), "not started again"
        )
        await until(lambda: answers(plane.postgres_dsn), "PostgreSQL does not answer")
        with psycopg.connect(plane.postgres_dsn) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (7,)


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
