"""The embedded servers: durable settings, restarts, and starts after `kill -9`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import nats
import psutil
import psycopg
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig

from schemas import subjects
from schemas.codes import Refusal
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL, OPERATOR, WORKER
from services.embedded.postgres import PostgresServer

WAIT_S = 20.0


def gone(process: psutil.Process) -> bool:
    """Ended; it may still wait to be collected by whoever inherited it."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition()` holds, at most `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


def test_postgres_is_durable_and_private(postgres_dsn: str, postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        shown = {
            name: connection.execute(f"SHOW {name}").fetchone()[0]  # type: ignore[index]
            for name in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums", "listen_addresses")
        }
        superuser = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    assert shown == {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "data_checksums": "on",
        "listen_addresses": "",
    }
    assert superuser == (False,)
    assert postgres_server.socket_dir.stat().st_mode & 0o777 == 0o700
    assert postgres_server.cluster_dir.stat().st_mode & 0o777 == 0o700


async def test_postgres_keeps_what_was_committed_before_kill_9(tmp_path: Path) -> None:
    first = PostgresServer(tmp_path)
    await first.start()
    with psycopg.connect(first.dsn()) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (7)")
    # A backend in the middle of a statement outlives its postmaster and keeps the shared memory.
    busy = await psycopg.AsyncConnection.connect(first.dsn())
    waiting = asyncio.create_task(busy.execute("SELECT count(*) FROM generate_series(1, 3000000000)"))
    backend = psutil.Process(busy.info.backend_pid)
    await until(lambda: backend.cpu_times().user > 0.05, "the backend did not become busy")
    os.kill(first.pid or 0, signal.SIGKILL)
    await first.child.wait(WAIT_S)
    assert (first.cluster_dir / "postmaster.pid").exists()
    assert backend.is_running()

    second = PostgresServer(tmp_path)
    await second.start()
    try:
        assert gone(backend)
        with psycopg.connect(second.dsn()) as connection:
            assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]
    finally:
        await second.stop()
    with pytest.raises(psycopg.Error):
        await waiting
    await busy.close()
    assert second.pid is None


async def test_postgres_starts_though_the_lock_file_names_a_living_stranger(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path)
    await server.start()
    await server.stop()
    (server.cluster_dir / "postmaster.pid").write_text(f"{os.getpid()}\n{server.cluster_dir}\n1\n5432\n\n\n\n")
    await server.start()
    await server.stop()


async def test_postgres_replaces_a_half_made_cluster_and_refuses_another_version(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path)
    (tmp_path / "postgres.new").mkdir()
    (tmp_path / "postgres.new" / "PG_VERSION").write_text("18\n")
    await server.start()
    await server.stop()
    (server.cluster_dir / "PG_VERSION").write_text("16\n")
    with pytest.raises(Refusal, match="holds PostgreSQL 16"):
        await server.start()


async def test_postgres_finds_a_short_socket_for_a_long_data_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    server = PostgresServer(deep)
    await server.start()
    try:
        assert deep not in server.socket_dir.parents
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        await server.stop()


async def test_nats_keeps_port_store_and_passwords_over_kill_9(tmp_path: Path) -> None:
    first = NatsServer(tmp_path)
    await first.start()
    client = await nats.connect(first.url())
    js = client.jetstream()
    await js.add_stream(StreamConfig(name="KEPT", subjects=["kept.>"]))
    await js.publish("kept.one", b"1")
    await client.close()
    port, password = first.port, first.password(CONTROL)
    os.kill(first.pid or 0, signal.SIGKILL)
    await first.child.wait(WAIT_S)

    second = NatsServer(tmp_path)
    await second.start()
    try:
        assert (second.port, second.password(CONTROL)) == (port, password)
        client = await nats.connect(second.url())
        assert (await client.jetstream().stream_info("KEPT")).state.messages == 1
        await client.close()
    finally:
        await second.stop()
    for user in (CONTROL, OPERATOR, WORKER):
        assert second.password_file(user).stat().st_mode & 0o777 == 0o600


async def test_nats_ends_a_leftover_and_leaves_a_taken_port(tmp_path: Path) -> None:
    left = NatsServer(tmp_path)
    await left.start()
    pid = left.pid
    again = NatsServer(tmp_path)
    await again.start()
    assert left.port == again.port
    assert left.pid is None
    assert again.pid != pid
    await again.stop()
    stranger = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", again.port)
    await again.start()
    assert again.port != left.port
    await again.stop()
    stranger.close()
    await stranger.wait_closed()


async def test_nats_refuses_a_wrong_password(nats_server: NatsServer) -> None:
    client = Client()
    with pytest.raises(NatsError, match=r"(?i)authorization"):
        await client.connect(nats_server.address, user="control", password="wrong", allow_reconnect=False)
    await client.close()


async def test_worker_may_do_its_work_and_nothing_more(nats_url: str, nats_worker_url: str) -> None:
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    control = await nats.connect(nats_url)
    js = control.jetstream()
    await js.add_stream(StreamConfig(name=subjects.STREAM_WORK, subjects=[f"{subjects.WORK}.>"]))
    await js.add_stream(StreamConfig(name=subjects.STREAM_EVIDENCE, subjects=[f"{subjects.EVIDENCE}.>"]))
    await js.publish(subjects.work_subject("n1", "w1"), b"offer")
    worker = await nats.connect(nats_worker_url, error_cb=on_error)
    offers = await worker.jetstream().pull_subscribe(
        f"{subjects.WORK}.n1.>", durable="node-n1", stream=subjects.STREAM_WORK
    )
    (offer,) = await offers.fetch(1, timeout=5)
    await offer.ack_sync()
    await worker.jetstream().publish(subjects.evidence_subject("n1", "1", "w1"), b"{}")

    async def claim(message: Msg) -> None:
        await message.respond(b"token")

    await control.subscribe(f"{subjects.RPC}.lease.claim", cb=claim)
    await control.flush()
    assert (await worker.request(f"{subjects.RPC}.lease.claim", b"", timeout=5)).data == b"token"

    async def live(message: Msg) -> None:
        await message.respond(b"holding")

    await worker.subscribe(subjects.live_subject("n1"), cb=live)
    await worker.flush()
    assert (await control.request(subjects.live_subject("n1"), b"", timeout=5)).data == b"holding"
    assert refused == []

    forbidden = [
        f"{subjects.RPC}.approval.grant",
        f"{subjects.CMD}.deployment.create",
        f"{subjects.EVT}.node.n1.node-enrolled",
        subjects.work_subject("n1", "w2"),
        "$JS.API.STREAM.DELETE.WORK",
        f"$JS.API.CONSUMER.CREATE.{subjects.STREAM_EVIDENCE}",
        "_INBOX.somebody.else",
    ]
    for subject in forbidden:
        await worker.publish(subject, b"{}")
    await worker.subscribe(f"{subjects.EVIDENCE}.>")
    await worker.subscribe(f"{subjects.RPC}.>")
    await worker.flush()
    await until(lambda: len(refused) >= len(forbidden) + 2, f"not all refused: {refused}")
    await worker.close()
    await control.close()


async def test_operator_reads_events_and_cannot_speak_as_a_worker(nats_url: str, nats_operator_url: str) -> None:
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    control = await nats.connect(nats_url)
    js = control.jetstream()
    await js.add_stream(StreamConfig(name=subjects.STREAM_EVENTS, subjects=[f"{subjects.EVT}.>"]))
    await js.publish(f"{subjects.EVT}.node.n1.node-enrolled", b"{}")
    operator = await nats.connect(nats_operator_url, error_cb=on_error)
    events = await operator.jetstream().subscribe(f"{subjects.EVT}.>", ordered_consumer=True)
    assert (await events.next_msg(timeout=5)).data == b"{}"
    await events.unsubscribe()
    await operator.flush()
    assert refused == []
    forbidden = [
        f"{subjects.RPC}.worker.register",
        f"{subjects.RPC}.lease.claim",
        f"{subjects.BEAT}.n1",
        subjects.evidence_subject("n1", "1", "w1"),
        f"{subjects.EVT}.node.n1.node-enrolled",
        "$JS.API.STREAM.PURGE.EVENTS",
    ]
    for subject in forbidden:
        await operator.publish(subject, b"{}")
    await operator.flush()
    await until(lambda: len(refused) >= len(forbidden), f"not all refused: {refused}")
    await operator.close()
    await control.close()
