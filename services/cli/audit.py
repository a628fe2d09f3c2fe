"""`tenure audit replay`: fold the record again from its first event and say whether everything holds.

Reads Postgres, never the bus: the log is the record. The story is what the events say; the verdict is
services.audit's, which checks order, fencing, signatures and the invariants.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from schemas.codes import Code, Refusal
from schemas.events import decode_event
from services.cli import options
from services.cli.context import run_alone
from services.cli.events import Told, cells
from services.cli.exits import OK, REFUSED
from services.cli.terminal import Terminal
from services.eventlog.port import LogError, LogRow
from services.eventlog.postgres import PostgresLog
from services.settings import Settings

STORY_MAX = 1_000  # events printed; a longer log is read by stream or as JSON from the bus
PAGE = 500

app = typer.Typer(no_args_is_help=True, help="Audit: the record, folded again and checked.")


class Audit(Struct, frozen=True):
    """`report` is what services.audit found, as plain values; `consistent` its verdict."""

    consistent: bool
    report: dict[str, Any]
    story: list[Told]


def dsn_of(settings: Settings) -> str:
    dsn = settings.resolved().postgres_dsn
    if dsn is None:
        advice = "Start the servers with `tenure up`, or set TENURE_POSTGRES_DSN or TENURE_DATA_DIR."
        raise Refusal(Code.UNAVAILABLE, "no Postgres is known", {"advice": advice})
    return dsn


async def replay(dsn: str, terminal: Terminal, streams: list[str] | None = None) -> Audit:
    """Replay the whole log and tell the story of these streams, or of all of it where none are named."""
    try:
        report = await _report(dsn, terminal)
        story = await _story(dsn, streams)
    except LogError as error:
        raise Refusal(Code.UNAVAILABLE, f"the log cannot be read: {error}") from error
    return Audit(bool(report.get("consistent")), report, story)


async def _report(dsn: str, terminal: Terminal) -> dict[str, Any]:
    audit = importlib.import_module("services.audit")  # late: it folds, and most commands do not need it
    run: Callable[..., Awaitable[Any]] = audit.replay
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=terminal.err, transient=True, disable=not terminal.err.is_terminal) as progress:
        task = progress.add_task("replaying", total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        report = await run(dsn, on_progress)
    plain: dict[str, Any] = msgspec.to_builtins(report)
    return {**plain, "consistent": bool(report.consistent)}


async def _story(dsn: str, streams: list[str] | None) -> list[Told]:
    log = PostgresLog(dsn)
    try:
        if streams:
            return [_told(row) for row in await log.read_streams(streams)]
        rows: list[LogRow] = []
        for _ in range(STORY_MAX // PAGE):
            page = await log.read(rows[-1].position if rows else 0, PAGE)
            rows += page
            if len(page) < PAGE:
                break
        return [_told(row) for row in rows]
    finally:
        await log.close()


def _told(row: LogRow) -> Told:
    event = decode_event(row.topic, row.state)
    return Told(row.position, row.stream, row.topic, event.at_ms, msgspec.to_builtins(event))


def show(terminal: Terminal, audit: Audit) -> None:
    """The story, then what was counted and found, then the verdict."""
    terminal.table(("POSITION", "AT", "STREAM", "EVENT", "DETAIL"), map(cells, audit.story), "the log is empty")
    terminal.print("")
    terminal.facts(findings(audit.report))
    terminal.facts([("verdict", "consistent" if audit.consistent else "VIOLATED")])


def findings(report: dict[str, Any]) -> list[tuple[str, object]]:
    """Each figure and each finding of the report, lists item by item."""
    shown: list[tuple[str, object]] = []
    for name, value in report.items():
        label = name.replace("_", " ")
        if name == "consistent":
            continue
        if isinstance(value, dict):
            shown.append((label, ", ".join(f"{key} {each}" for key, each in value.items()) or "none"))
        elif isinstance(value, list):
            shown.append((label, len(value) or "none"))
            shown += [("", _line(each)) for each in value]
        else:
            shown.append((label, value))
    return shown


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in value.items() if each not in (None, ""))
    return str(value)


@app.command("replay")
def replay_command(
    stream: Annotated[list[str] | None, typer.Option("--stream", help="Tell only this stream, <noun>-<id>.")] = None,
    work: Annotated[list[str] | None, typer.Option("--work", help="Tell only this work item (its whole id).")] = None,
    as_json: options.Json = False,
) -> None:
    """Replay the log from its first event. Exit code 1 if anything is violated."""
    streams = [*(stream or []), *(f"work-{ident}" for ident in work or [])]

    async def command(terminal: Terminal, settings: Settings) -> int:
        audit = await replay(dsn_of(settings), terminal, streams)
        terminal.result(audit, lambda: show(terminal, audit))
        return OK if audit.consistent else REFUSED

    run_alone(as_json, command)
