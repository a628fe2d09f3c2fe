"""`tenure node`: the machines, each with a credential of its own."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from projections.rows import NodeRow
from schemas.codes import Code, Refusal
from services.cli import options
from services.cli.context import Context, run
from services.cli.look.devices import brief, devices_command
from services.cli.screen.formats import age, short, yes
from services.client import Client
from services.embedded import node_login
from services.embedded.nats_conf import node_user

CREDENTIAL_BYTES = 32

app = typer.Typer(no_args_is_help=True, help="Nodes: machines with a credential and a worker.")
NodeName = Annotated[str, typer.Argument(help="The node's id.", metavar="NODE")]


async def change(client: Client, verb: str, node_id: str, **fields: str) -> NodeRow:
    """Send `node.<verb>`; the node's row afterwards."""
    reply = await client.accepted(f"node.{verb}", node_id=node_id, **fields)
    return await client.appear(NodeRow, node_id, reply.position)


async def enrol(client: Client, node_id: str, credential: str) -> NodeRow:
    """Make a node known by the digest of its credential; the secret itself is not sent."""
    return await change(client, "enrol", node_id, credential_sha256=hashlib.sha256(credential.encode()).hexdigest())


def write_credential(path: Path, credential: str) -> None:
    """A new file that only its owner reads. An existing one is never overwritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise Refusal(Code.NAME_TAKEN, f"{path} exists", {"advice": "Choose another file."}) from error
    except OSError as error:
        advice = {"advice": "Choose a folder you may write to."}
        raise Refusal(Code.CONFLICT, f"{path} cannot be written: {error.strerror}", advice) from error
    with os.fdopen(descriptor, "w") as file:
        file.write(credential + "\n")


@app.command("list")
def list_command(as_json: options.Json = False) -> None:
    """List the nodes, the session of each worker, and whether it answers now."""

    async def command(context: Context) -> None:
        rows = sorted(await context.client.rows(NodeRow), key=lambda row: row.id)
        told = await asyncio.gather(*(context.client.live(row.id, row.generation) for row in rows))
        answers = {
            row.id: answer is not None and answer.generation == row.generation
            for row, answer in zip(rows, told, strict=True)
        }
        cells = [
            (row.id, yes(row.enabled), row.session, yes(answers[row.id]), row.generation, short(row.fingerprint),
             "; ".join(f"{adapter}: {', '.join(tasks)}" for adapter, tasks in sorted(row.capabilities.items())),
             brief(answer if answers[row.id] else None), row.artifact_root, age(row.changed_at_ms))
            for row, answer in zip(rows, told, strict=True)
        ]  # fmt: skip
        columns = ("NODE", "ENABLED", "SESSION", "ANSWERS", "GENERATION", "ENVIRONMENT", "CAPABILITIES",
                   "DEVICES", "ARTIFACT ROOT", "CHANGED")  # fmt: skip
        document = {"nodes": rows, "answers": answers}
        empty = "no nodes; enrol one with `tenure node enrol`"
        context.terminal.result(document, lambda: context.terminal.table(columns, cells, empty))

    run(as_json, command)


@app.command("enrol")
def enrol_command(
    node: NodeName,
    credential_file: Annotated[
        Path | None, typer.Option("--credential-file", help="Write the new credential here (0600), do not show it.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Make a node known and its credential. The credential is shown once and kept nowhere."""
    credential = secrets.token_urlsafe(CREDENTIAL_BYTES)

    async def command(context: Context) -> None:
        if credential_file is not None:
            write_credential(credential_file, credential)
        row = await enrol(context.client, node, credential)
        where = ("credential", credential) if credential_file is None else ("credential file", str(credential_file))
        facts = [("node", row.id), where]
        login = await node_login.ensure(context.settings, node)
        if login is not None:
            facts += [("NATS user", login.user), ("NATS password file", str(login.password_file))]
        document = {"node": row, **{name.replace(" ", "_").lower(): value for name, value in facts[1:]}}
        context.terminal.result(document, lambda: context.terminal.facts(facts))
        context.terminal.say("give it to the node's worker as TENURE_CREDENTIAL_FILE")
        if login is None:
            context.terminal.say(f"its NATS login is {node_user(node)}; docs/guide/deployment.md says how to make it")

    run(as_json, command)


@app.command("disable")
def disable_command(
    node: NodeName,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the log.")] = "",
    as_json: options.Json = False,
) -> None:
    """Take a node out: its open work fails, what it holds counts as lost, its leases end."""
    run(as_json, lambda context: _changed(context, "disable", node, reason=reason))


@app.command("enable")
def enable_command(node: NodeName, as_json: options.Json = False) -> None:
    """Let a disabled node work again."""
    run(as_json, lambda context: _changed(context, "enable", node))


async def _changed(context: Context, verb: str, node_id: str, **fields: str) -> None:
    row = await change(context.client, verb, node_id, **fields)
    facts = [("node", row.id), ("enabled", yes(row.enabled)), ("session", row.session)]
    context.terminal.result({"node": row}, lambda: context.terminal.facts(facts))


app.command("devices")(devices_command)
