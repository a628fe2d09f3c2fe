"""A claim of work caught at one moment: on its way, being decided, or decided with its answer on its way.

The work is the check of a small folder of files: it is over in milliseconds once it has begun, so that what a test
sees is the claim. The moments are found by conditions, never by time:

* on its way:      the claim's bytes are in the network, held by the proxy
* being decided:   the append of its grant waits for the log's lock, which the test holds
* decided:         the grant is in the log, and the answer with its token is in the network, held by the proxy
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import AsyncIterator

import psycopg

from schemas import subjects
from schemas.artifacts import FileEntry
from services.client import Client
from tests.chaos.system import NODE, System
from tests.chaos.waiting import eventually

CLAIM = subjects.rpc_subject("lease.claim").encode()
TOKEN = b'"token":"'
CONTENT = b"A claim is a question with one answer.\n"
FOLDER = "claimed"
LOCK = "LOCK TABLE tenure.stored_events IN EXCLUSIVE MODE"
WAITING = "SELECT count(*) FROM pg_locks WHERE relation = 'tenure.stored_events'::regclass AND NOT granted"


async def ask(running: System) -> str:
    """Ask for the check of the folder; the work's id."""
    folder = running.plane.settings.artifacts / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_bytes(CONTENT)
    files = [FileEntry("text.txt", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())]
    async with await Client.connect(running.plane.settings, "chaos") as client:
        artifact = (await client.accepted("artifact.register", name="claimed", files=files)).result["artifact_id"]
        asked = await client.accepted("artifact.verify", artifact_id=artifact, node_id=NODE, location=FOLDER)
    return str(asked.result["work_id"])


async def held_at(running: System, part: bytes) -> str:
    """Ask for work, and wait until these bytes of its claim are held in the network; the work's id."""
    proxy = running.plane.proxy
    proxy.hold_at(part)
    work_id = await ask(running)

    async def there() -> bool:
        return proxy.holds(part)

    await eventually(there, f"{part.decode()} is in the network")
    return work_id


@contextlib.asynccontextmanager
async def being_decided(running: System) -> AsyncIterator[str]:
    """The append of a claim's grant waits for the log inside this block; the work's id."""
    dsn = running.plane.postgres_dsn
    work_id = await held_at(running, CLAIM)
    holding = await psycopg.AsyncConnection.connect(dsn)
    try:
        await holding.execute(LOCK)
        running.plane.proxy.release()
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watching:

            async def waits() -> bool:
                row = await (await watching.execute(WAITING)).fetchone()
                return row is not None and row[0] > 0

            await eventually(waits, "the grant waits for the log")
        yield work_id
    finally:
        with contextlib.suppress(psycopg.Error):  # the server may be what was killed
            await holding.rollback()
        await holding.close()


def command_held(running: System) -> str:
    """The id of the claim that the proxy holds."""
    found = re.search(rb'"command_id":"([^"]+)"', b"".join(running.plane.proxy.held()))
    assert found is not None
    return found[1].decode()


def token_held(running: System) -> bytes:
    """The secret that the proxy holds."""
    found = re.search(rb'"token":"([^"]+)"', b"".join(running.plane.proxy.held()))
    assert found is not None
    return found[1]
