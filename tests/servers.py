"""The real servers that integration tests run against, as pytest fixtures (`tests/conftest.py` exports them).

PostgreSQL and NATS are the embedded ones, started once per test session in a temporary folder and stopped at its end.
What a test gets is fresh: `postgres_dsn` is a new database, `nats_url` a server without streams of earlier tests.

* `postgres_server`, `nats_server`: the running servers (session).
* `postgres_dsn`: DSN of an empty database, as the role the services use (test).
* `nats_url`: URL with the control plane's credentials, after removing all streams (test).
* `nats_operator_url`: the same server as an operator (test). A node's is `nats_server.url(node_user(NODE))`, after
  `await nats_server.add_node(NODE)`.
* `nats_store`: the server's JetStream folder (test).

One server serves a whole session, so tests of one process must not run in parallel against these fixtures.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL, OPERATOR
from services.embedded.postgres import PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    # Not below pytest's own folder: another pytest that starts makes that one private again, and as root the
    # server runs as another user and would lose its cluster.
    with tempfile.TemporaryDirectory(prefix="tenure-postgres-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder))
        asyncio.run(server.start())
        yield server
        asyncio.run(server.stop())


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats-server"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"test_{os.getpid()}_{next(_numbers)}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


async def _remove_streams(url: str) -> None:
    client = await nats.connect(url)
    js = client.jetstream()
    for stream in await js.streams_info():
        await js.delete_stream(stream.config.name or "")
    await client.close()


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    asyncio.run(_remove_streams(nats_server.url(CONTROL)))
    return nats_server.url(CONTROL)


@pytest.fixture
def nats_operator_url(nats_url: str, nats_server: NatsServer) -> str:
    return nats_server.url(OPERATOR)


@pytest.fixture
def nats_store(nats_server: NatsServer) -> Path:
    return nats_server.store_dir
