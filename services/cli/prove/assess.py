"""`tenure assess`: static inspection of a set on a node, for one adapter and task. No weights are loaded."""

from __future__ import annotations

from typing import Annotated

import typer

from projections.rows import ArtifactRow, NodeRow, WorkRow
from schemas.codes import Code, Refusal
from services.cli import options
from services.cli.context import Context, run
from services.cli.screen.evidence import facts
from services.cli.screen.formats import short
from services.cli.screen.terminal import Terminal
from services.cli.screen.waiting import completed, ended, made
from services.client import Client

DEFAULT_TASK = "embedding"


def adapter_for(node: NodeRow, task: str, said: str | None) -> str:
    """The adapter that was named, or the only one of the node that does the task."""
    if said is not None:
        return said
    able = sorted(adapter for adapter, tasks in node.capabilities.items() if task in tasks)
    if len(able) == 1:
        return able[0]
    if not able:
        raise Refusal(Code.RUNTIME_INCOMPATIBLE, f"node {node.id!r} has no adapter that does {task!r}")
    raise Refusal(
        Code.CONFLICT, f"several adapters do {task!r}: {', '.join(able)}", {"advice": "Name one with --adapter."}
    )


async def assess(
    client: Client, terminal: Terminal, artifact_id: str, node_id: str, task: str, adapter: str | None = None
) -> WorkRow:
    """Have the node inspect the set. The work as it completed, whether compatible or not."""
    node = await client.one(NodeRow, node_id)
    chosen = adapter_for(node, task, adapter)
    reply = await client.accepted(
        "assessment.request", artifact_id=artifact_id, node_id=node.id, adapter=chosen, task=task
    )
    return completed(await ended(client, terminal, made(reply, "work_id"), "assess", reply.position))


def compatible(work: WorkRow) -> WorkRow:
    """The assessment, if it found the set compatible; otherwise its reasons, raised."""
    if work.result.get("compatible"):
        return work
    reasons = "; ".join(f"{each.get('code')}: {each.get('message')}" for each in work.result.get("reasons") or [])
    message = f"assessment {short(work.id)} found it not compatible: {reasons or 'no reason given'}"
    raise Refusal(Code.RUNTIME_INCOMPATIBLE, message, {"work_id": work.id})


def assess_command(
    artifact: options.Artifact,
    task: Annotated[str, typer.Option("--task", help="The capability it is to serve.")] = DEFAULT_TASK,
    adapter: Annotated[
        str | None, typer.Option("--adapter", help="The adapter; by default the node's only one for the task.")
    ] = None,
    node: options.Node = options.LOCAL_NODE,
    as_json: options.Json = False,
) -> None:
    """Have a node inspect a set statically. Fails with its reasons where it is not compatible."""

    async def command(context: Context) -> None:
        row = await context.client.one(ArtifactRow, artifact)
        work = compatible(await assess(context.client, context.terminal, row.id, node, task, adapter))
        context.terminal.result({"assessment": work}, lambda: context.terminal.facts(facts(work)))

    run(as_json, command)
