"""`tenure ps`: what is loaded now, on the word of the workers, next to what the log says.

`loaded` is never taken from the log; see services.client.live for what it needs.
"""

from __future__ import annotations

import asyncio
import time

from projections.rows import DeploymentRow, NodeRow, ResidencyRow
from schemas.codes import Code
from schemas.live import LiveAnswer
from services.cli import options
from services.cli.context import Context, run
from services.cli.screen.formats import age, short, size, span
from services.client import Client
from services.client.live import Holding, holding
from services.client.silence import silences

COLUMNS = (
    "ID", "NAME", "CAPABILITY", "NODE", "STATE", "LOG SAYS", "GENERATION", "LOADED FOR", "PID", "MEMORY",
    "INVOCATIONS", "IN FLIGHT", "WHY",
)  # fmt: skip


async def holdings(client: Client, retired: bool = False, node_id: str | None = None) -> list[Holding]:
    """Every deployment on every node it is bound to, each node asked once and all at the same time."""
    deployments = [row for row in await client.rows(DeploymentRow) if retired or not row.retired]
    nodes = {row.id: row for row in await client.rows(NodeRow)}
    log = {row.id: row for row in await client.rows(ResidencyRow)}
    pairs = [
        (deployment, node)
        for deployment in sorted(deployments, key=lambda row: (row.name, row.created_at_ms))
        for node in deployment.node_ids
        if node_id in (None, node)
    ]
    asked = sorted({node for _, node in pairs if node in nodes})
    told = await asyncio.gather(*(client.live(node, nodes[node].generation) for node in asked))
    answers: dict[str, LiveAnswer | None] = dict(zip(asked, told, strict=True))
    heard = await silences(client) if None in told else {}
    now_ms = int(time.time() * 1_000)
    return [
        holding(
            deployment, node, nodes.get(node), log.get(f"{deployment.id}.{node}"), answers.get(node), now_ms,
            heard.get(node),
        )
        for deployment, node in pairs
    ]  # fmt: skip


def cells(held: Holding) -> tuple[object, ...]:
    return (
        short(held.deployment_id), held.name, held.capability, held.node_id, held.state, log_word(held),
        held.generation, age(held.since_ms), held.pid, size(held.process_bytes), held.invocations, held.in_flight,
        why(held),
    )  # fmt: skip


def log_word(held: Holding) -> str:
    """What the log knows, and of which generation where one holds it."""
    return held.log_state if held.log_generation == "0" else f"{held.log_state} (generation {held.log_generation})"


def why(held: Holding) -> str | None:
    """Said where the state is not simply what the log says, too."""
    if held.state == "loaded":
        return None
    if held.circuit_until_ms is not None:
        return circuit_word(held.circuit_until_ms, held.circuit_cause, int(time.time() * 1_000))
    if held.state != "unknown":
        return held.reason if held.log_state != held.state else None
    if held.silent_ms is not None:
        return f"{held.reason}, silent for {span(held.silent_ms)}; session {held.session}"
    return f"{held.reason}; session {held.session}"


def circuit_word(until_ms: int, cause: str | None, now_ms: int) -> str:
    """Why loads are refused, and until when; or that the next one decides."""
    when = f"no load for {span(until_ms - now_ms)}" if until_ms > now_ms else "one load may try"
    return f"{Code.RUNTIME_CRASH_LOOP}: {cause}; {when}"


def ps_command(
    node: options.NodeMaybe = None,
    everything: options.All = False,
    as_json: options.Json = False,
) -> None:
    """Show which deployments are loaded now. Silence of a worker is `unknown`, never `loaded`."""

    async def command(context: Context) -> None:
        rows = await holdings(context.client, everything, node)
        empty = "no deployments; make one with `tenure deploy`"
        context.terminal.result({"deployments": rows}, lambda: context.terminal.table(COLUMNS, map(cells, rows), empty))

    run(as_json, command)
