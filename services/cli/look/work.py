"""`tenure work`: every leased item, whatever its kind; and the steps that all kinds share."""

from __future__ import annotations

from typing import Annotated

import typer

from projections.rows import WorkRow
from schemas.codes import Code, Refusal
from schemas.work import FINAL_STAGES
from services.cli import options
from services.cli.context import Context, run
from services.cli.screen.evidence import facts
from services.cli.screen.formats import age, short, span
from services.client import Client

app = typer.Typer(no_args_is_help=True, help="Work: the leased items that workers do.")
COLUMNS = ("ID", "KIND", "NODE", "STAGE", "ATTEMPT", "GENERATION", "ABOUT", "CODE", "AGE", "TOOK")


async def find(client: Client, reference: str, kind: str | None = None) -> WorkRow:
    """The work item a person means, of this kind where one is asked for."""
    work = await client.one(WorkRow, reference)
    if kind is not None and work.kind != kind:
        raise Refusal(Code.UNKNOWN_STREAM, f"{short(work.id)} is a {work.kind}, not a {kind}")
    return work


async def cancel(client: Client, work_id: str, reason: str) -> WorkRow:
    """Ask for the end of a work item; its row after the request was recorded."""
    reply = await client.accepted("work.cancel", work_id=work_id, reason=reason)
    return await client.appear(WorkRow, work_id, reply.position)


def cells(row: WorkRow) -> tuple[object, ...]:
    about = row.deployment_id or row.artifact_id
    took = span(row.ended_at_ms - row.requested_at_ms) if row.ended_at_ms is not None else None
    stage = f"{row.stage} (cancelling)" if row.cancel_requested and row.stage not in FINAL_STAGES else row.stage
    generation = row.generation if row.attempt else None
    return (
        short(row.id), row.kind, row.node_id, stage, row.attempt, generation, short(about), row.code,
        age(row.requested_at_ms), took,
    )  # fmt: skip


async def show_list(context: Context, where: dict[str, str], open_only: bool, key: str, empty: str) -> None:
    rows = sorted(await context.client.rows(WorkRow, where), key=lambda row: row.requested_at_ms)
    if open_only:
        rows = [row for row in rows if row.stage not in FINAL_STAGES]
    context.terminal.result({key: rows}, lambda: context.terminal.table(COLUMNS, map(cells, rows), empty))


async def show_one(context: Context, work: WorkRow, key: str) -> None:
    context.terminal.result({key: work}, lambda: context.terminal.facts(facts(work)))


@app.command("list")
def list_command(
    kind: Annotated[str | None, typer.Option("--kind", help="Only verify, assess, probe, load, ...")] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="Only in this stage.")] = None,
    node: options.NodeMaybe = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only what has not ended.")] = False,
    as_json: options.Json = False,
) -> None:
    """List work items, oldest first."""
    said = {"kind": kind, "stage": stage, "node_id": node}
    where = {name: value for name, value in said.items() if value is not None}
    run(as_json, lambda context: show_list(context, where, open_only, "work", "no work"))


@app.command("show")
def show_command(work: options.Work, as_json: options.Json = False) -> None:
    """Show a work item and what it found."""

    async def command(context: Context) -> None:
        await show_one(context, await find(context.client, work), "work")

    run(as_json, command)


@app.command("cancel")
def cancel_command(
    work: options.Work,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the log.")] = "",
    as_json: options.Json = False,
) -> None:
    """Ask for the end of a work item. What is running stops at its next safe point."""

    async def command(context: Context) -> None:
        row = await cancel(context.client, (await find(context.client, work)).id, reason)
        await show_one(context, row, "work")

    run(as_json, command)
