"""`tenure deploy`, `load`, `health`, `drain`, `unload`: an approved candidate under a name, and its jobs on nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from msgspec import Struct

from projections.rows import CandidateRow, DeploymentRow, WorkRow
from schemas.codes import Code, Refusal
from services.cli import options
from services.cli.context import Context, run
from services.cli.screen.evidence import facts
from services.cli.screen.formats import short, yes
from services.cli.screen.terminal import Terminal
from services.cli.screen.waiting import completed, ended, made
from services.client import Client

VERBS = {
    "load": "Load a deployment on its nodes and wait until it is resident.",
    "health": "Have the worker run a small real inference and check its output.",
    "drain": "Stop taking requests and let running ones end.",
    "unload": "End the model's process and prove that the memory came back.",
}


class Job(Struct, frozen=True):
    """A requested job. `work_id` is None where the state asked for holds already."""

    node_id: str
    verb: str
    work_id: str | None
    state: str
    position: int | None


async def create(
    client: Client, name: str, candidate: CandidateRow, digest: str, capability: str, node_ids: Sequence[str]
) -> DeploymentRow:
    """Bind the approved candidate to a capability under a name; the deployment's row."""
    reply = await client.accepted(
        "deployment.create",
        name=name,
        candidate_id=candidate.id,
        candidate_digest=digest,
        capability=capability,
        node_ids=list(node_ids),
    )
    return await client.appear(DeploymentRow, made(reply, "deployment_id"), reply.position)


async def request(client: Client, deployment: DeploymentRow, node_id: str, verb: str) -> Job:
    reply = await client.accepted("job.request", deployment_id=deployment.id, node_id=node_id, verb=verb)
    work_id: Any = reply.result.get("work_id")
    return Job(node_id, verb, work_id, str(reply.result.get("state", "")), reply.position)


async def finish(client: Client, terminal: Terminal, job: Job) -> WorkRow | None:
    """Wait for a job to complete and hold its evidence to what it promises. None where nothing was to be done."""
    if job.work_id is None:
        return None
    return proved(completed(await ended(client, terminal, job.work_id, f"{job.verb} on {job.node_id}", job.position)))


async def do(client: Client, terminal: Terminal, deployment: DeploymentRow, node_id: str, verb: str) -> WorkRow | None:
    return await finish(client, terminal, await request(client, deployment, node_id, verb))


def proved(work: WorkRow) -> WorkRow:
    """A completed job whose evidence does not show what was asked for is a refusal, not a success."""
    health = work.result.get("health")
    layers = ("process", "runtime", "model", "capability")
    if isinstance(health, dict) and not all(health.get(layer) for layer in layers):
        bad = ", ".join(layer for layer in layers if not health.get(layer))
        message = f"not healthy: {bad}. {health.get('detail', '')}".strip()
        raise Refusal(Code.HEALTH_FAILED, message, {"work_id": work.id})
    memory = work.result.get("memory")
    if work.kind == "unload" and isinstance(memory, dict) and not memory.get("reclaim_complete"):
        why = memory.get("reclaim_reason") or "the memory did not come back in full"
        raise Refusal(Code.RECLAIM_INCOMPLETE, f"unloaded, and reclaim is incomplete: {why}", {"work_id": work.id})
    return work


def nodes_of(deployment: DeploymentRow, node_id: str | None) -> list[str]:
    """The nodes a job is for: the one that was named, or all of the deployment's."""
    if node_id is None:
        return list(deployment.node_ids)
    if node_id not in deployment.node_ids:
        bound = ", ".join(deployment.node_ids)
        raise Refusal(Code.RESIDENCY_CONFLICT, f"{deployment.name!r} is not bound to {node_id!r}; it is to {bound}")
    return [node_id]


def deploy_command(
    candidate: options.Candidate,
    name: Annotated[str, typer.Option("--name", help="The name people and programs will use.")],
    digest: Annotated[
        str | None, typer.Option("--digest", help="The approved digest; by default the candidate's, as approved.")
    ] = None,
    capability: Annotated[str | None, typer.Option("--capability", help="The candidate's task by default.")] = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", help="A node to serve it; repeat for more. The probed one by default.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Make a deployment of an approved candidate. It is not loaded yet."""

    async def command(context: Context) -> None:
        row = await context.client.one(CandidateRow, candidate)
        made_of = await create(
            context.client, name, row, digest or row.digest, capability or row.task, node or [row.node_id]
        )
        shown = [("deployment", made_of.id), ("name", made_of.name), ("capability", made_of.capability)]
        shown += [("nodes", ", ".join(made_of.node_ids)), ("candidate", made_of.candidate_id)]
        context.terminal.result({"deployment": made_of}, lambda: context.terminal.facts(shown))
        context.terminal.say(f"next: `tenure load {made_of.name}`")

    run(as_json, command)


def _job_command(verb: str, deployment: str, node: str | None, detach: bool, as_json: bool) -> None:
    async def command(context: Context) -> None:
        client, terminal = context.client, context.terminal
        row = await client.one(DeploymentRow, deployment)
        jobs = [await request(client, row, node_id, verb) for node_id in nodes_of(row, node)]
        works: list[WorkRow | None] = []
        refused: list[Refusal] = []
        for job in jobs if not detach else []:  # all of them run by now; waiting for one after the other is enough
            try:
                works.append(await finish(client, terminal, job))
            except Refusal as refusal:
                refused.append(refusal)
        for other in refused[1:]:
            terminal.say(f"{other.code}: {other.message}")
        if refused:
            raise refused[0]

        def show() -> None:
            for job in jobs:
                if job.work_id is None:
                    terminal.facts([("deployment", row.name), ("node", job.node_id), ("already", job.state)])
                elif detach:
                    terminal.facts([("work", job.work_id), ("node", job.node_id), ("state", job.state)])
            for work in works:
                if work is not None:
                    terminal.facts([*facts(work), ("name", row.name)])

        terminal.result({"deployment": short(row.id), "jobs": jobs, "work": [work for work in works if work]}, show)

    run(as_json, command)


def retire_command(deployment: options.Deployment, as_json: options.Json = False) -> None:
    """Take a deployment out of use for good. Refused while it is resident anywhere."""

    async def command(context: Context) -> None:
        row = await context.client.one(DeploymentRow, deployment)
        reply = await context.client.accepted("deployment.retire", deployment_id=row.id)
        row = await context.client.appear(DeploymentRow, row.id, reply.position)
        shown = [("deployment", row.id), ("name", row.name), ("retired", yes(row.retired))]
        context.terminal.result({"deployment": row}, lambda: context.terminal.facts(shown))

    run(as_json, command)


def register(app: typer.Typer, panel: str) -> None:
    """Add `deploy`, one command per verb, and `retire`."""
    app.command("deploy", rich_help_panel=panel)(deploy_command)
    for verb, explanation in VERBS.items():
        app.command(verb, help=explanation, rich_help_panel=panel)(_command_for(verb))
    app.command("retire", rich_help_panel=panel)(retire_command)


def _command_for(verb: str) -> Any:
    def job_command(
        deployment: options.Deployment,
        node: options.NodeMaybe = None,
        detach: options.Detach = False,
        as_json: options.Json = False,
    ) -> None:
        _job_command(verb, deployment, node, detach, as_json)

    return job_command
