"""The embedded servers: durable settings, restarts, and starts after `kill -9`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import nats
import psutil
import psycopg
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.api import StreamConfig

from schemas import subjects
from schemas.codes import Refusal
from schemas.work import Offer
from services.embedded.credentials import ensure_secret
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL, OPERATOR, node_user
from services.embedded.node_login import logs_in
from services.embedded.postgres import PostgresServer
from worker.duty.offers import OfferReader

WAIT_S = 20.0


def gone(process: psutil.Process) -> bool:
    """Ended; it may still wait to be collected by whoever inherited it."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def until(condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
    """Wait until `condition()` holds, at most `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
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
    await first.add_node("n1")
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
    for user in (CONTROL, OPERATOR, node_user("n1")):
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


async def ask(client: Client, subject: str) -> bytes:
    """A request. While the server reads its logins again it may know of no responder for some milliseconds."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return (await client.request(subject, b"", timeout=WAIT_S)).data
        except NoRespondersError:
            assert time.monotonic() < deadline, f"nobody answers on {subject}"
            await asyncio.sleep(0.01)


class NodeSession:
    """One node's login as its worker uses it; `refused` is what the server said it may not do."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.refused: list[str] = []

    async def connect(self, server: NatsServer, inbox_prefix: str | None = None) -> Client:
        await server.add_node(self.node_id)

        async def on_error(error: Exception) -> None:
            self.refused.append(str(error))

        prefix = inbox_prefix or subjects.node_inbox(self.node_id)
        self.client = await nats.connect(server.url(node_user(self.node_id)), error_cb=on_error, inbox_prefix=prefix)
        return self.client

    async def may_not(self, *, publish: list[str], subscribe: list[str]) -> None:
        """The server refuses each of these, and names it."""
        for subject in publish:
            await self.client.publish(subject, b"{}")
        for subject in subscribe:
            await self.client.subscribe(subject)
        await self.client.flush()
        expected = {f'publish to "{subject.lower()}"' for subject in publish}
        expected |= {f'subscription to "{subject.lower()}"' for subject in subscribe}

        def not_refused() -> set[str]:
            return {each for each in expected if not any(each in said.lower() for said in self.refused)}

        await until(lambda: not not_refused(), lambda: f"not refused: {not_refused()}, but: {self.refused}")
        self.refused.clear()


async def work_and_evidence(url: str) -> Client:
    """The control plane's connection, with the streams that workers use."""
    control = await nats.connect(url)
    js = control.jetstream()
    await js.add_stream(StreamConfig(name=subjects.STREAM_WORK, subjects=[f"{subjects.WORK}.>"]))
    await js.add_stream(StreamConfig(name=subjects.STREAM_EVIDENCE, subjects=[f"{subjects.EVIDENCE}.>"]))
    return control


async def offer_work(control: Client, node_id: str) -> None:
    offer = Offer("w1", node_id, "load", 1)
    await control.jetstream().publish(subjects.work_subject(node_id, "w1"), msgspec.json.encode(offer))


async def test_a_node_may_do_its_work_and_no_persons(nats_url: str, nats_server: NatsServer) -> None:
    control = await work_and_evidence(nats_url)
    await offer_work(control, "n1")
    node = NodeSession("n1")
    worker = await node.connect(nats_server)
    offers: list[Offer] = []
    reader = OfferReader(worker, "n1", lambda offer: offers.append(offer) is None)
    await reader.step()
    assert [offer.work_id for offer in offers] == ["w1"]
    consumer = await control.jetstream().consumer_info(subjects.STREAM_WORK, subjects.work_consumer("n1"))
    assert (consumer.delivered.stream_seq, consumer.num_pending) == (1, 0)
    await worker.jetstream().publish(subjects.evidence_subject("n1", "1", "w1"), b"{}")

    async def claim(message: Msg) -> None:
        await message.respond(b"token")

    await control.subscribe(f"{subjects.RPC}.lease.claim.*", cb=claim)
    await control.flush()
    assert await ask(worker, subjects.claim_subject("n1")) == b"token"

    async def live(message: Msg) -> None:
        await message.respond(b"holding")

    for subject in (subjects.live_subject("n1"), subjects.serve_subject("n1", "1", "*")):
        await worker.subscribe(subject, cb=live)
    await worker.flush()
    for subject in (subjects.live_subject("n1"), subjects.serve_subject("n1", "1", "d1")):
        assert await ask(control, subject) == b"holding"
    await reader.close()
    assert node.refused == []

    await node.may_not(
        publish=[
            subjects.rpc_subject("approval.grant"),
            f"{subjects.CMD}.deployment.create",
            f"{subjects.EVT}.node.n1.node-enrolled",
            subjects.work_subject("n1", "w2"),
            "$JS.API.STREAM.DELETE.WORK",
            "$JS.API.STREAM.INFO.WORK",
            f"$JS.API.CONSUMER.CREATE.{subjects.STREAM_EVIDENCE}",
            "_INBOX.somebody.else",
            "_INBOX_CONTROL.else",
        ],
        subscribe=[
            f"{subjects.EVIDENCE}.>",
            f"{subjects.RPC}.>",
            f"{subjects.BEAT}.n1",
            "_INBOX.>",
            "_INBOX_CONTROL.>",
            ">",
        ],
    )
    await worker.close()
    await control.close()


async def test_a_node_may_answer_one_invocation_in_many_pieces(
    nats_url: str, nats_operator_url: str, nats_server: NatsServer
) -> None:
    """What is streamed, and then whole; and only where a request has asked for it."""
    node = NodeSession("n1")
    worker = await node.connect(nats_server)
    person = await nats.connect(nats_operator_url)
    pieces = [b"%d" % number for number in range(50)]

    async def answer(message: Msg) -> None:
        for piece in pieces:
            await message.respond(piece)

    await worker.subscribe(subjects.serve_subject("n1", "1", "*"), cb=answer)
    await worker.flush()
    inbox = person.new_inbox()
    heard = await person.subscribe(inbox)
    subject = subjects.serve_subject("n1", "1", "d1")

    async def asked() -> list[bytes]:
        """All pieces; asked again where the server knew of no responder while it read its logins."""
        await person.publish(subject, b"", reply=inbox)
        first = await heard.next_msg(timeout=WAIT_S)
        if not first.data:
            return await asked()
        return [first.data, *[(await heard.next_msg(timeout=WAIT_S)).data for _ in pieces[1:]]]

    assert await asked() == pieces
    assert node.refused == []
    await node.may_not(publish=[person.new_inbox()], subscribe=[inbox])
    await person.close()
    await worker.close()


async def test_one_node_cannot_speak_or_listen_as_another(nats_url: str, nats_server: NatsServer) -> None:
    control = await work_and_evidence(nats_url)
    victim, node = NodeSession("n2"), NodeSession("n1")
    other = await victim.connect(nats_server)
    reader = OfferReader(other, "n2", lambda offer: True)
    await offer_work(control, "n2")
    await reader.step()  # its consumer is there now
    await reader.close()
    await node.connect(nats_server)
    work, consumer = subjects.STREAM_WORK, subjects.work_consumer("n2")
    await node.may_not(
        publish=[
            subjects.beat_subject("n2"),
            subjects.evidence_subject("n2", "1", "w1"),
            subjects.claim_subject("n2"),
            subjects.rpc_subject("lease.claim"),
            f"{subjects.node_inbox('n2')}.a",
            f"$JS.API.CONSUMER.INFO.{work}.{consumer}",
            f"$JS.API.CONSUMER.MSG.NEXT.{work}.{consumer}",
            f"$JS.API.CONSUMER.DELETE.{work}.{consumer}",
            f"$JS.API.CONSUMER.CREATE.{work}.{consumer}.{subjects.work_subject('n2', '>')}",
            f"$JS.API.CONSUMER.CREATE.{work}.mine.{subjects.work_subject('n2', '>')}",
            f"$JS.API.CONSUMER.CREATE.{work}.{subjects.work_consumer('n1')}.{subjects.WORK}.>",
            f"$JS.API.CONSUMER.CREATE.{work}.{subjects.work_consumer('n1')}",
            f"$JS.API.CONSUMER.DURABLE.CREATE.{work}.{subjects.work_consumer('n1')}",
            f"$JS.API.CONSUMER.CREATE.{work}",
            f"$JS.ACK.{work}.{consumer}.1.1.1.1.1",
        ],
        subscribe=[
            f"{subjects.node_inbox('n2')}.>",
            f"{subjects.node_inbox('*')}.>",
            subjects.live_subject("n2"),
            subjects.live_subject("*"),
            subjects.serve_subject("n2", "*", "*"),
            subjects.serve_subject("*", "*", "*"),
            subjects.work_subject("n2", ">"),
            f"{subjects.WORK}.>",
        ],
    )
    await control.close()
    for session in (node, victim):
        await session.client.close()


async def test_a_nodes_consumer_gives_no_other_nodes_offers(nats_url: str, nats_server: NatsServer) -> None:
    """The server holds name and filter in the body to those in the subject, which the permissions are about."""
    control = await work_and_evidence(nats_url)
    node = NodeSession("n1")
    worker = await node.connect(nats_server)
    work, own = subjects.STREAM_WORK, subjects.work_consumer("n1")
    subject = f"$JS.API.CONSUMER.CREATE.{work}.{own}.{subjects.work_subject('n1', '>')}"
    kind = {"durable_name": own, "ack_policy": "explicit"}
    for config in (
        {**kind, "name": own, "filter_subject": subjects.work_subject("n2", ">")},
        {**kind, "name": own, "filter_subjects": [subjects.work_subject("n1", ">"), subjects.work_subject("n2", ">")]},
        {**kind, "name": own},
        {"name": "mine", "durable_name": "mine", "filter_subject": subjects.work_subject("n1", ">")},
        {**kind, "name": own, "durable_name": "mine", "filter_subject": subjects.work_subject("n1", ">")},
    ):
        body = json.dumps({"stream_name": work, "config": config, "action": ""}).encode()
        answer = json.loads((await worker.request(subject, body, timeout=5)).data)
        assert "error" in answer, config
    assert node.refused == []
    assert await control.jetstream().consumers_info(work) == []
    await worker.close()
    await control.close()


async def test_a_reply_to_one_node_reaches_no_other(nats_url: str, nats_server: NatsServer) -> None:
    """What was possible while all workers had one login and one inbox: to read the token out of another's claim."""
    control = await nats.connect(nats_url)
    eavesdropper, claimant = NodeSession("n1"), NodeSession("n2")
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    ears = await eavesdropper.connect(nats_server)
    for subject in ("_INBOX.>", f"{subjects.node_inbox('n2')}.>", f"{subjects.node_inbox('n1')}.>"):
        await ears.subscribe(subject, cb=hear)
    await ears.flush()

    async def claim(message: Msg) -> None:
        assert message.reply.startswith("_INBOX_NODE.n2.")
        await message.respond(b"token")

    await control.subscribe(f"{subjects.RPC}.lease.claim.*", cb=claim)
    await control.flush()
    worker = await claimant.connect(nats_server)
    assert await ask(worker, subjects.claim_subject("n2")) == b"token"
    await control.publish(f"{subjects.node_inbox('n1')}.mine", b"mine")  # it hears at all
    await control.flush()
    await until(lambda: bool(heard), "it heard nothing")
    assert heard == [b"mine"]
    for client in (ears, worker, control):
        await client.close()


async def test_a_node_added_while_the_server_runs_can_log_in_and_others_stay(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    await server.add_node("first")
    await server.start()
    lost: list[str] = []

    async def on_disconnected() -> None:
        lost.append("disconnected")

    try:
        control = await nats.connect(server.url(), disconnected_cb=on_disconnected)
        first = await nats.connect(server.url(node_user("first")), disconnected_cb=on_disconnected)

        async def live(message: Msg) -> None:
            await message.respond(b"still here")

        await first.subscribe(subjects.live_subject("first"), cb=live)
        await first.flush()
        login = Client()
        with pytest.raises(NatsError, match=r"(?i)authorization"):
            await login.connect(
                server.address, user=node_user("second"), password="not yet", allow_reconnect=False, error_cb=_quiet
            )
        await login.close()
        pid = server.pid

        ensure_secret(server.password_file(node_user("second")))
        assert server.follow_logins()
        await logs_in(server.url(node_user("second")))
        assert server.pid == pid
        ended = asyncio.Event()

        async def on_closed() -> None:
            ended.set()

        second = await nats.connect(
            server.url(node_user("second")), allow_reconnect=False, closed_cb=on_closed, error_cb=_quiet
        )
        assert await ask(control, subjects.live_subject("first")) == b"still here"
        assert lost == []

        server.password_file(node_user("second")).unlink()
        assert server.follow_logins()
        await asyncio.wait_for(ended.wait(), WAIT_S)
        await second.close()
        assert not server.follow_logins(), "there was nothing more to take up"
        with pytest.raises(Refusal, match="does not take the new login"):
            await logs_in(f"nats://{node_user('second')}:gone@127.0.0.1:{server.port}", timeout_s=0.5)
        await control.close()
        await first.close()
    finally:
        await server.stop()


async def _quiet(_error: Exception) -> None:
    """The exception says it."""


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
