"""`tenure node devices`: the memory of each node's accelerators now, and who has it reserved.

Numbers are the owning worker's, with their age; reservations are the log's. See services.client.devices.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from projections.rows import DeploymentRow, NodeRow, ResidencyRow, WorkRow
from schemas.live import LiveAnswer
from schemas.work import RUNNING_STAGES
from services.cli import options
from services.cli.context import Context, run
from services.cli.screen.formats import UNAVAILABLE, short, size, span
from services.client import Client
from services.client.devices import DeviceNow, Holder, devices_now

COLUMNS = (
    "NODE", "DEVICE", "NAME", "TOTAL", "USED", "OWN", "EXTERNAL", "RESERVED", "BY", "RESERVE", "FREE FOR ADMISSION",
    "AGE", "GENERATION", "WHY",
)  # fmt: skip


async def devices(client: Client, node_id: str | None = None) -> list[DeviceNow]:
    """Every accelerator of every enrolled node, each node asked once and all at the same time."""
    nodes = [row for row in await client.rows(NodeRow) if node_id is None or row.id == node_id]
    residencies = await client.rows(ResidencyRow)
    # Only leased work has something reserved, and the history of ended work is long.
    leased = [row for stage in RUNNING_STAGES for row in await client.rows(WorkRow, {"stage": stage})]
    names = {row.id: row.name for row in await client.rows(DeploymentRow)}
    told = await asyncio.gather(*(client.live(node.id, node.generation) for node in nodes))
    return [
        device
        for node, answer in sorted(zip(nodes, told, strict=True), key=lambda pair: pair[0].id)
        for device in devices_now(node, answer, residencies, leased, names)
    ]


def cells(device: DeviceNow) -> tuple[object, ...]:
    return (
        device.node_id, device.index, device.name, measured(device.total_bytes), measured(device.used_bytes),
        measured(device.own_bytes), measured(device.external_bytes), size(device.reserved_bytes),
        ", ".join(map(holder, device.reserved_by)), measured(device.reserve_bytes),
        measured(device.available_bytes), span(device.age_ms), device.generation, why(device),
    )  # fmt: skip


def measured(count: int | None) -> str:
    """A size, or that there is none: never 0 and never a dash where nobody measured."""
    return UNAVAILABLE if count is None else size(count)


def holder(each: Holder) -> str:
    named = each.name or short(each.id)
    return f"{each.kind} of {named} {size(each.bytes)}" if each.pending else f"{named} {size(each.bytes)}"


def why(device: DeviceNow) -> str | None:
    """Why numbers are missing."""
    return device.unavailable or device.unattributed


def brief(answer: LiveAnswer | None) -> str | None:
    """A node's devices in a few characters, for the list of nodes."""
    told = answer.devices if answer is not None else []
    said = [
        f"{each.index}: {UNAVAILABLE}" if each.used_bytes is None
        else f"{each.index}: {size(each.used_bytes)} of {size(each.total_bytes)} used"
        for each in told
    ]  # fmt: skip
    return "; ".join(said) or None


def devices_command(
    node: Annotated[str | None, typer.Argument(help="Only this node.", metavar="[NODE]")] = None,
    as_json: options.Json = False,
) -> None:
    """Show device memory: measured now, reserved, and free for admission. Foreign use is external, never ours."""

    async def command(context: Context) -> None:
        if node is not None:
            await context.client.one(NodeRow, node)  # a name that is no node's is a refusal, not an empty table
        found = await devices(context.client, node)
        empty = "no devices are known; profiles on cpu need none (see `tenure ps` for what processes hold)"
        context.terminal.result({"devices": found}, lambda: context.terminal.table(COLUMNS, map(cells, found), empty))

    run(as_json, command)
