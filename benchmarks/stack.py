"""Servers and processes for a benchmark: real ones, in a temporary folder, ended at exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import nats

from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL
from services.embedded.postgres import PostgresServer
from services.eventlog.migrate import migrate

READY_S = 30.0
STOP_S = 10.0
PROCESSES = ("control", "relay", "projector", "query")


class Servers(NamedTuple):
    folder: Path
    postgres: PostgresServer
    nats: NatsServer

    @property
    def nats_url(self) -> str:
        return self.nats.url(CONTROL)


@contextlib.asynccontextmanager
async def servers() -> AsyncIterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as name:
        folder = Path(name)
        postgres, bus = PostgresServer(folder), NatsServer(folder)
        await postgres.start()
        await bus.start()
        try:
            yield Servers(folder, postgres, bus)
        finally:
            await bus.stop()
            await postgres.stop()


@contextlib.asynccontextmanager
async def services(stack: Servers, name: str, processes: tuple[str, ...] = PROCESSES) -> AsyncIterator[str]:
    """The control plane's processes on a fresh database and fresh streams; gives the DSN."""
    dsn = stack.postgres.create_database(name)
    migrate(dsn)
    client = await nats.connect(stack.nats_url)
    js = client.jetstream()
    for stream in await js.streams_info():
        await js.delete_stream(stream.config.name or "")
    environment = {**os.environ, "TENURE_POSTGRES_DSN": dsn, "TENURE_NATS_URL": stack.nats_url,
                   "TENURE_DATA_DIR": str(stack.folder / name), "TENURE_LOG_LEVEL": "warning"}  # fmt: skip
    running = [
        await asyncio.create_subprocess_exec(sys.executable, "-m", f"services.{process}", env=environment)
        for process in processes
    ]
    try:
        for process in processes:
            await _answers(client, f"tenure-{process}")
        yield dsn
    finally:
        await client.close()
        for child in running:
            child.send_signal(signal.SIGTERM)
        for child in running:
            try:
                await asyncio.wait_for(child.wait(), STOP_S)
            except TimeoutError:
                child.kill()
                await child.wait()
        stack.postgres.drop_database(name)


async def _answers(client: nats.NATS, service: str) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                await client.request(f"$SRV.PING.{service}", b"", timeout=0.5)
                return
            await asyncio.sleep(0.05)
