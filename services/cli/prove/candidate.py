"""`tenure candidate` and `tenure approve`: what a completed probe made, and a person's approval of it.

Approval names the exact digest. On a terminal a person is shown the candidate and asked; otherwise the digest
must be given, so that no script approves what nobody looked at.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from projections.rows import CandidateRow
from schemas.codes import Code, Refusal
from services.cli import options
from services.cli.context import Context, run
from services.cli.screen.formats import age, short, yes
from services.client import Client

app = typer.Typer(no_args_is_help=True, help="DeploymentCandidates: made only by completed probes.")
Note = Annotated[str, typer.Option("--note", help="Why, for the log.")]


async def approve(client: Client, candidate: CandidateRow, digest: str, note: str) -> CandidateRow:
    """Approve exactly this digest of this candidate; the candidate afterwards."""
    reply = await client.accepted("approval.grant", candidate_id=candidate.id, candidate_digest=digest, note=note)
    return await client.appear(CandidateRow, candidate.id, reply.position)


def candidate_facts(row: CandidateRow) -> list[tuple[str, object]]:
    return [
        ("candidate", row.id),
        ("digest", row.digest),
        ("artifact", row.artifact_id),
        ("profile", row.profile_id),
        ("environment", row.fingerprint),
        ("probed on", row.node_id),
        ("task", f"{row.task}, adapter {row.adapter}"),
        ("status", row.status),
        ("approved by", row.approved_by),
    ]


@app.command("list")
def list_command(as_json: options.Json = False) -> None:
    """List the candidates and who approved them."""

    async def command(context: Context) -> None:
        rows = sorted(await context.client.rows(CandidateRow), key=lambda row: row.created_at_ms)
        cells = [
            (short(row.id), short(row.digest), row.task, row.node_id, short(row.artifact_id), short(row.profile_id),
             row.status, yes(row.production), row.approved_by, age(row.created_at_ms))
            for row in rows
        ]  # fmt: skip
        columns = ("ID", "DIGEST", "TASK", "NODE", "ARTIFACT", "PROFILE", "STATUS", "PRODUCTION", "APPROVED BY", "AGE")
        empty = "no candidates; a completed `tenure probe run` makes one"
        context.terminal.result({"candidates": rows}, lambda: context.terminal.table(columns, cells, empty))

    run(as_json, command)


@app.command("revoke")
def revoke_command(candidate: options.Candidate, note: Note = "", as_json: options.Json = False) -> None:
    """Take an approval back. What is loaded stays; nothing is loaded anew."""

    async def command(context: Context) -> None:
        row = await context.client.one(CandidateRow, candidate)
        reply = await context.client.accepted("approval.revoke", candidate_id=row.id, note=note)
        row = await context.client.appear(CandidateRow, row.id, reply.position)
        context.terminal.result({"candidate": row}, lambda: context.terminal.facts(candidate_facts(row)))

    run(as_json, command)


def approve_command(
    candidate: options.Candidate,
    digest: Annotated[str | None, typer.Option("--digest", help="The exact digest you approve.")] = None,
    note: Note = "",
    as_json: options.Json = False,
) -> None:
    """Approve one exact candidate for production. You are recorded as the approver."""
    interactive = sys.stdin.isatty() and sys.stderr.isatty() and not as_json
    if digest is None and not interactive:
        raise typer.BadParameter("say the digest you looked at: `tenure candidate list --json`", param_hint="--digest")

    async def command(context: Context) -> None:
        row = await context.client.one(CandidateRow, candidate)
        if digest is None:
            context.terminal.facts(candidate_facts(row))
            if not typer.confirm(f"Approve exactly this digest as {context.client.actor}?", err=True):
                raise Refusal(Code.CANDIDATE_NOT_APPROVED, "you did not approve it", {"advice": "Nothing was changed."})
        approved = await approve(context.client, row, digest or row.digest, note)
        context.terminal.result({"candidate": approved}, lambda: context.terminal.facts(candidate_facts(approved)))

    run(as_json, command)
