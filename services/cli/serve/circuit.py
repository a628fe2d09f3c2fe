"""`tenure circuit`: deployments that ended by themselves too often on a node, and their release by a person."""

from __future__ import annotations

import typer

from projections.rows import DeploymentRow, ResidencyRow
from services.cli import options
from services.cli.context import Context, run
from services.cli.serve.deployment import nodes_of
from services.client import Client

app = typer.Typer(no_args_is_help=True, help="Circuits: what is not loaded because it crashed again and again.")


async def close(client: Client, deployment: DeploymentRow, node_id: str) -> ResidencyRow:
    """Let the deployment be loaded on the node again; its residency afterwards."""
    reply = await client.accepted("circuit.close", deployment_id=deployment.id, node_id=node_id)
    return await client.appear(ResidencyRow, f"{deployment.id}.{node_id}", reply.position)


@app.command("close")
def close_command(
    deployment: options.Deployment, node: options.NodeMaybe = None, as_json: options.Json = False
) -> None:
    """Let a deployment be loaded again at once. Do it when the cause is gone; `tenure ps` shows the cause."""

    async def command(context: Context) -> None:
        row = await context.client.one(DeploymentRow, deployment)
        rows = {each.id: each for each in await context.client.rows(ResidencyRow, {"deployment_id": row.id})}
        asked = [node_id for node_id in nodes_of(row, node) if f"{row.id}.{node_id}" in rows]
        closed = [await close(context.client, row, node_id) for node_id in asked]

        def show() -> None:
            for each in closed:
                was = rows[each.id].circuit_cause
                context.terminal.facts(
                    [
                        ("deployment", row.name),
                        ("node", each.node_id),
                        ("was open for", was or "nothing: it was closed"),
                    ]
                )

        context.terminal.result({"residencies": closed}, show)
        context.terminal.say(f"next: `tenure load {row.name}`")

    run(as_json, command)
