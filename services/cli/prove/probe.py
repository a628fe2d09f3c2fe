"""`tenure probe`: load, check, measure and unload a set under a profile. A completed probe is a candidate."""

from __future__ import annotations

from typing import Annotated

import typer

from projections.rows import CandidateRow, ProfileRow, WorkRow
from services.cli import options
from services.cli.context import Context, run
from services.cli.look import work
from services.cli.screen.evidence import facts
from services.cli.screen.formats import short
from services.cli.screen.terminal import Terminal
from services.cli.screen.waiting import completed, ended, made
from services.client import Client

app = typer.Typer(no_args_is_help=True, help="RuntimeProbes: the evidence that a set runs under a profile.")
Probe = Annotated[str, typer.Argument(help="Id or id prefix of a probe.", metavar="PROBE")]


async def request(client: Client, assessment_id: str, profile_id: str) -> tuple[str, int | None]:
    """Ask for a probe; its work id and the position of the request."""
    reply = await client.accepted("probe.request", assessment_id=assessment_id, profile_id=profile_id)
    return made(reply, "work_id"), reply.position


async def finish(
    client: Client, terminal: Terminal, work_id: str, position: int | None
) -> tuple[WorkRow, CandidateRow]:
    """Wait for a probe to complete; the probe and the candidate it made. The candidate's id is the probe's."""
    probe = completed(await ended(client, terminal, work_id, "probe", position))
    return probe, await client.appear(CandidateRow, work_id, probe.position)


@app.command("run")
def run_command(
    profile: options.Profile,
    assessment: Annotated[
        str | None, typer.Option("--assessment", help="Another assessment than the profile's own.")
    ] = None,
    detach: options.Detach = False,
    as_json: options.Json = False,
) -> None:
    """Probe a profile on the node of its assessment, and wait for the evidence."""

    async def command(context: Context) -> None:
        client, terminal = context.client, context.terminal
        row = await client.one(ProfileRow, profile)
        ground = (await work.find(client, assessment, "assess")).id if assessment else row.assessment_id
        work_id, position = await request(client, ground, row.id)
        if detach:
            terminal.result({"work_id": work_id}, lambda: terminal.facts([("probe", work_id)]))
            return
        probe, candidate = await finish(client, terminal, work_id, position)
        shown = [*facts(probe), ("candidate", candidate.id), ("digest", candidate.digest)]
        terminal.result({"probe": probe, "candidate": candidate}, lambda: terminal.facts(shown))
        terminal.say(f"next: `tenure approve {short(candidate.id)} --digest {candidate.digest}`")

    run(as_json, command)


@app.command("show")
def show_command(probe: Probe, as_json: options.Json = False) -> None:
    """Show a probe and its evidence."""

    async def command(context: Context) -> None:
        await work.show_one(context, await work.find(context.client, probe, "probe"), "probe")

    run(as_json, command)


@app.command("cancel")
def cancel_command(
    probe: Probe,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the log.")] = "",
    as_json: options.Json = False,
) -> None:
    """Ask for the end of a probe. The child unloads and exits."""

    async def command(context: Context) -> None:
        found = await work.find(context.client, probe, "probe")
        await work.show_one(context, await work.cancel(context.client, found.id, reason), "probe")

    run(as_json, command)


@app.command("list")
def list_command(as_json: options.Json = False) -> None:
    """List the probes, oldest first."""
    empty = "no probes; run one with `tenure probe run`"
    run(as_json, lambda context: work.show_list(context, {"kind": "probe"}, False, "probes", empty))
