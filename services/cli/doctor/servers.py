"""What `tenure doctor` asks of the servers: Postgres, NATS, the services behind it, and the nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psycopg

from projections.rows import NodeRow
from schemas import subjects
from schemas.codes import Refusal
from schemas.queries import Query
from services.cli.doctor.findings import Check, failed, ok, skipped, warning
from services.cli.doctor.progress import follower_check, readers_check
from services.cli.screen.formats import span
from services.client import Client
from services.client.answers import position_of
from services.client.wire import Unreachable
from services.eventlog.postgres import EVENTS_TABLE, SCHEMA
from services.settings import ENDPOINTS_FILE, Settings

POSTGRES_TIMEOUT_S = 3
PING_TIMEOUT_S = 1.0
START = "Start the servers with `tenure up`, or set TENURE_POSTGRES_DSN and TENURE_NATS_URL."
STREAMS = (
    subjects.STREAM_COMMANDS, subjects.STREAM_EVENTS, subjects.STREAM_WORK, subjects.STREAM_EVIDENCE,
)  # fmt: skip
SERVICES = ("control", "relay", "projector", "query")  # NATS micro services a plane cannot do without
BEHIND_NATS = ("streams", "services", "projection", "relay", "readers", "nodes")
DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")


async def server_checks(settings: Settings) -> list[Check]:
    """Every check that needs a server."""
    known = settings.resolved()
    checks = [_endpoints(settings, known)]
    postgres, last = await asyncio.to_thread(_postgres, known.postgres_dsn)
    checks += postgres
    try:
        client = await Client.connect(settings)
    except Refusal as refusal:
        advice = refusal.detail.get("advice") or START
        checks.append(failed("nats", refusal.message, advice, server=True))
        return [*checks, *(skipped(name, "NATS") for name in BEHIND_NATS)]
    try:
        checks.append(ok("nats", f"{known.nats_url}"))
        return checks + await _behind(client, last)
    finally:
        await client.close()


def _endpoints(settings: Settings, known: Settings) -> Check:
    path = settings.data_dir / ENDPOINTS_FILE
    if settings.postgres_dsn and settings.nats_url:
        return ok("endpoints", "from TENURE_POSTGRES_DSN and TENURE_NATS_URL")
    if known.postgres_dsn and known.nats_url:
        return ok("endpoints", str(path))
    return failed("endpoints", f"no {path}", START, server=True)


def _postgres(dsn: str | None) -> tuple[list[Check], int | None]:
    """Postgres, its tables and its durability; and the last position of the log where it could be read."""
    names = ("postgres", "log tables", "durability")
    if dsn is None:
        return [
            failed(names[0], "no address is known", START, server=True),
            *(skipped(n, names[0]) for n in names[1:]),
        ], None
    try:
        with psycopg.connect(dsn, connect_timeout=POSTGRES_TIMEOUT_S) as connection:
            server = ok(names[0], f"PostgreSQL {connection.info.parameter_status('server_version')}")
            migrated, last = _tables(connection)
            return [server, migrated, _durability(connection)], last
    except psycopg.Error as error:
        found = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return [failed(names[0], found, START, server=True), *(skipped(n, names[0]) for n in names[1:])], None


def _tables(connection: psycopg.Connection[Any]) -> tuple[Check, int | None]:
    table = f"{SCHEMA}.{EVENTS_TABLE}"
    found = connection.execute("SELECT to_regclass(%s), to_regclass(%s)", (table, f"{SCHEMA}.receipts")).fetchone()
    if found is None or None in found:
        return failed("log tables", "missing", "Run `python -m services.eventlog.migrate`."), None
    row = connection.execute(f"SELECT coalesce(max(notification_id), 0) FROM {table}").fetchone()  # noqa: S608
    last = int(row[0]) if row else 0
    return ok("log tables", f"last position {last}"), last


def _durability(connection: psycopg.Connection[Any]) -> Check:
    values = {}
    for name in DURABILITY:
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
        values[name] = str(row[0]) if row else "unknown"
    found = ", ".join(f"{name} {value}" for name, value in values.items())
    weak = [name for name, value in values.items() if value in ("off", "local", "unknown")]
    if weak:
        advice = f"Set {', '.join(weak)} to on: a crash could lose events that were confirmed."
        return failed("durability", found, advice)
    return ok("durability", found)


async def _behind(client: Client, last: int | None) -> list[Check]:
    """What is reached over NATS. A connection that breaks on the way ends with what was found so far."""
    checks: list[Check] = []
    try:
        checks.append(await _streams(client))
        checks.append(await _services(client))
        checks.append(await _projection(client, last))
        checks.append(await _relay(client, last))
        nodes = await _node_rows(client)
        checks.append(await readers_check(client, [] if isinstance(nodes, Check) else nodes))
        checks += [nodes] if isinstance(nodes, Check) else await _nodes(client, nodes)
    except Unreachable as error:
        checks.append(failed("nats", str(error), START, server=True))
    return checks


async def _streams(client: Client) -> Check:
    missing = []
    for stream in STREAMS:
        try:
            await client.wire.last(stream)
        except Unreachable:
            missing.append(stream)
    if missing:
        advice = "The control plane makes them at its start. Start it, and look at its log."
        return failed("streams", f"missing or not readable: {', '.join(missing)}", advice)
    return ok("streams", ", ".join(STREAMS))


async def _services(client: Client) -> Check:
    answers = await client.wire.gather("$SRV.PING", b"", PING_TIMEOUT_S, lambda data: False)
    names = sorted({name for name in map(_service_name, answers) if name})
    missing = [name for name in SERVICES if not any(name in each for each in names)]
    found = ", ".join(names) or "nobody answers"
    if missing:
        advice = f"Not answering: {', '.join(missing)}. Start them with `tenure up`, or look at their logs."
        return failed("services", found, advice, server=True)
    return ok("services", found)


def _service_name(data: bytes) -> str | None:
    try:
        name = msgspec.json.decode(data).get("name")
    except (msgspec.DecodeError, AttributeError):
        return None
    return name if isinstance(name, str) else None


async def _projection(client: Client, last: int | None) -> Check:
    async def look() -> tuple[int, str]:
        reply = await client.query("node", Query(limit=1))
        return reply.position, f", checked {span(reply.age_ms)} ago"

    try:
        return await follower_check("projection", "projector", last, look)
    except Refusal as refusal:
        return failed("projection", refusal.message, "Start the projector and the query service.", server=True)


async def _relay(client: Client, last: int | None) -> Check:
    async def look() -> tuple[int, str]:
        newest = 0
        async for message in client.wire.stream(subjects.STREAM_EVENTS, f"{subjects.EVT}.>", -1, follow=False):
            newest = position_of(message)
        return newest, ""

    return await follower_check("relay", "relay", last, look)


async def _node_rows(client: Client) -> list[NodeRow] | Check:
    try:
        return await client.rows(NodeRow)
    except Refusal as refusal:
        return failed("nodes", refusal.message, "See projection.")


async def _nodes(client: Client, nodes: list[NodeRow]) -> list[Check]:
    if not nodes:
        return [warning("nodes", "none is enrolled", "Enrol one with `tenure node enrol` and start its worker.")]
    told = await asyncio.gather(*(client.live(node.id, node.generation) for node in nodes))
    checks = []
    for node, answer in zip(nodes, told, strict=True):
        name = f"node {node.id}"
        found = f"session {node.session}, generation {node.generation}"
        if not node.enabled:
            checks.append(warning(name, f"disabled; {found}", f"`tenure node enable {node.id}` when it is wanted."))
        elif answer is None or answer.generation != node.generation:
            checks.append(failed(name, f"does not answer; {found}", "Start its worker, or look at its log."))
        elif not answer.serving:
            advice = "It could not renew its session. Look at the network between it and NATS."
            checks.append(failed(name, f"has stopped serving; {found}", advice))
        else:
            checks.append(ok(name, f"answers, {len(answer.residents)} resident; {found}"))
    return checks
