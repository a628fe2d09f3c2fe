"""PostgreSQL and NATS in containers: what we use of them works there, and outlives a restart."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import nats
import psycopg
import pytest
from nats.js.api import StreamConfig
from psycopg import sql
from testcontainers.community.nats import NatsContainer
from testcontainers.community.postgres import PostgresContainer

from tests.contract.test_eventlog import *  # noqa: F403 - the contract suite, run on the container's database

pytestmark = pytest.mark.timeout(300)
READY_S = 60.0
T = TypeVar("T")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def postgres_container(postgres_image: str) -> Iterator[PostgresContainer]:
    with PostgresContainer(postgres_image, username="tenure", password="tenure", dbname="tenure") as container:
        yield container


@pytest.fixture
def dsn(  # it takes the place of the suite's own
    postgres_container: PostgresContainer,
) -> str:
    """An empty database in the container, for the contract suite."""
    whole = postgres_container.get_connection_url(driver=None)
    name = f"contract_{next(_numbers)}"
    with psycopg.connect(whole, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return psycopg.conninfo.make_conninfo(whole, dbname=name)


def within_bound(attempt: Callable[[], T]) -> T:
    """Try until it works, at most READY_S: a restarted server refuses for a moment."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            return attempt()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_postgres_keeps_a_commit_over_a_kill_of_its_container(postgres_image: str) -> None:
    with PostgresContainer(postgres_image, username="tenure", password="tenure", dbname="tenure") as container:
        with psycopg.connect(container.get_connection_url(driver=None)) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        docker = container.get_wrapped_container()
        docker.kill()
        docker.start()
        docker.reload()
        connection = within_bound(lambda: psycopg.connect(container.get_connection_url(driver=None)))
        with connection:
            assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]


async def test_jetstream_round_trip_and_restart(nats_image: str) -> None:
    with NatsContainer(nats_image, jetstream=True) as container:
        client = await nats.connect(container.nats_uri())
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="KEPT", subjects=["kept.>"]))
        await js.publish("kept.one", b"1")
        await client.close()
        docker = container.get_wrapped_container()
        docker.restart()
        docker.reload()
        client = await nats.connect(container.nats_uri(), max_reconnect_attempts=30, reconnect_time_wait=1)
        subscription = await client.jetstream().pull_subscribe("kept.>", durable="reader")
        (message,) = await subscription.fetch(1, timeout=10)
        assert message.data == b"1"
        await message.ack_sync()
        await client.close()
