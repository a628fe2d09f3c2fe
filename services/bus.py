"""The bus: one way to connect, and the JetStream streams Tenure needs.

Reconnecting is without end, because a service has nothing better to do; every request has its own bound. But what the
server ends with an error (a login that it no longer knows, say) nats-py closes for good. Then the process ends, and
whoever keeps it running starts another.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import nats.js.errors
import nats.micro
import structlog
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from schemas import subjects
from schemas.tokens import MESSAGE_BYTES_MAX
from services.process import EXIT_BUS_CLOSED, Stop
from services.settings import Settings

log = structlog.get_logger()
_watches: set[asyncio.Task[None]] = set()  # a task that nobody holds may be collected

INBOX_PREFIX = "_INBOX_CONTROL"  # no other login may listen there: what JetStream delivers to us is not everybody's
CONNECT_TIMEOUT_S = 5
RECONNECT_WAIT_S = 0.5
CLOSED_LOOK_S = 0.5
PENDING_BYTES_MAX = 64 * 1024 * 1024
COMMANDS_MAX = 1_000_000
EVIDENCE_MAX = 1_000_000
OFFERS_MAX = 100_000
DUPLICATE_WINDOW_S = 1  # the relay needs none; a long one would stop it from filling a purged stream again
CREATE_TIMEOUT_S = 10.0
STREAM_NAME_IN_USE = 10058  # somebody else made it at the same time

# What the client library has no field for. COMMANDS holds what a sender published and forgot, so it follows the
# server's `sync_interval: always`. The others can be had again (from the log, the next heartbeat, the worker's
# outbox) and need no fsync for each message. Servers before 2.12 do not know the setting and sync more.
MORE: dict[str, dict[str, Any]] = {
    subjects.STREAM_EVENTS: {"persist_mode": "async"},
    subjects.STREAM_WORK: {"persist_mode": "async"},
    subjects.STREAM_EVIDENCE: {"persist_mode": "async"},
}

STREAMS = (
    StreamConfig(
        name=subjects.STREAM_COMMANDS, subjects=[f"{subjects.CMD}.>"], retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE, max_msgs=COMMANDS_MAX, discard=DiscardPolicy.NEW, max_msg_size=MESSAGE_BYTES_MAX,
    ),
    StreamConfig(
        name=subjects.STREAM_EVENTS, subjects=[f"{subjects.EVT}.>"], retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE, duplicate_window=DUPLICATE_WINDOW_S,
    ),
    StreamConfig(
        name=subjects.STREAM_WORK, subjects=[f"{subjects.WORK}.>"], retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE, max_msgs_per_subject=1, max_msgs=OFFERS_MAX, max_age=86_400,
    ),
    StreamConfig(
        name=subjects.STREAM_EVIDENCE, subjects=[f"{subjects.EVIDENCE}.>"], retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE, max_msgs=EVIDENCE_MAX, discard=DiscardPolicy.NEW, max_msg_size=MESSAGE_BYTES_MAX,
    ),
)  # fmt: skip


async def connect(settings: Settings, name: str, stop: Stop) -> Client:
    """A connection under `name`; `stop` is set where it is closed. Raises nats.errors.NoServersError."""
    if settings.nats_url is None:
        raise ValueError("TENURE_NATS_URL is not set and no embedded server is running")
    options: dict[str, Any] = {}
    if settings.nats_user:
        options = {"user": settings.nats_user, "password": settings.nats_password}

    async def on_error(error: Exception) -> None:
        log.warning("bus.error", error=repr(error))

    async def on_disconnected() -> None:
        log.warning("bus.disconnected")

    async def on_reconnected() -> None:
        log.info("bus.reconnected")

    client = await nats.connect(
        settings.nats_url, name=name, inbox_prefix=INBOX_PREFIX, connect_timeout=CONNECT_TIMEOUT_S,
        max_reconnect_attempts=-1, reconnect_time_wait=RECONNECT_WAIT_S, pending_size=PENDING_BYTES_MAX,
        error_cb=on_error, disconnected_cb=on_disconnected, reconnected_cb=on_reconnected, **options,
    )  # fmt: skip
    client_watch = asyncio.create_task(_end_when_closed(client, stop))
    _watches.add(client_watch)
    client_watch.add_done_callback(_watches.discard)
    return client


async def _end_when_closed(client: Client, stop: Stop) -> None:
    """Looks, since nats-py calls its `closed_cb` only where closing went well."""
    while not client.is_closed:  # noqa: ASYNC110 - nats-py sets no event that can be relied on
        await asyncio.sleep(CLOSED_LOOK_S)
    if not stop.is_set():
        log.error("bus.closed", advice="the server ended the connection; the lines before say why")
        stop.end(EXIT_BUS_CLOSED)


async def ensure_streams(nc: Client) -> None:
    """Create the streams that are not there. Existing ones are left as an operator set them.

    Created with a request of our own, since the client library has no fields for MORE.
    """
    js = nc.jetstream()
    there = {info.config.name for info in await js.streams_info()}
    for config in STREAMS:
        if config.name not in there:
            await _create(nc, config)


async def _create(nc: Client, config: StreamConfig) -> None:
    wanted = {**config.as_dict(), **MORE.get(str(config.name), {})}
    subject = f"$JS.API.STREAM.CREATE.{config.name}"
    reply = await nc.request(subject, json.dumps(wanted).encode(), timeout=CREATE_TIMEOUT_S)
    error = json.loads(reply.data).get("error")
    if error is not None and error.get("err_code") != STREAM_NAME_IN_USE:
        nats.js.errors.APIError.from_error(error)  # raises the matching APIError


async def announce(nc: Client, name: str) -> None:
    """Make a process without endpoints answer `$SRV.PING`, so that `tenure doctor` sees it."""
    await nats.micro.add_service(nc, name=name, version="1.0.0")
