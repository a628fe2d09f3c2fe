"""`tenure audit replay`: fold the record again from its first event and say whether everything holds.

Reads Postgres, never the bus: the log is the record. The story is what the events say; the verdict is
services.audit's, which checks order, fencing, signatures and the invariants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import psycopg
import typer
from msgspec import Struct
from rich.progress import Progress, SpinnerColumn, TextColumn

from schemas.codes import Code, Refusal
from schemas.events import Event
from services.cli import options
from services.cli.context import run_alone
from services.cli.exits import OK, REFUSED
from services.cli.look.events import Told, cells
from services.cli.screen.terminal import Terminal
from services.eventlog.port import LogError, LogRow
from services.settings import Settings

STORY_MAX = 2_000  # events told; of a longer log, tell one stream or work item

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


async def replay(dsn: str, terminal: Terminal, streams: Sequence[str] = ()) -> Audit:
    """Replay the whole log and tell the story of these streams, or of all of it where none are named."""
    from services import audit  # late: it folds, and most commands do not need it

    story: list[Told] = []
    wanted = frozenset(streams)

    def on_event(row: LogRow, event: Event) -> None:
        if (not wanted or row.stream in wanted) and len(story) < STORY_MAX:
            story.append(Told(row.position, row.stream, row.topic, event.at_ms, msgspec.to_builtins(event)))

    columns = (TextColumn("replaying"), SpinnerColumn(), TextColumn("{task.completed:,} events"))
    hidden = not terminal.err.is_terminal
    try:
        with Progress(*columns, console=terminal.err, transient=True, disable=hidden) as progress:
            task = progress.add_task("replaying", total=None)
            found = await audit.replay(dsn, lambda events: progress.update(task, completed=events), on_event)
    except (LogError, psycopg.Error) as error:
        raise Refusal(Code.UNAVAILABLE, f"the log cannot be read: {error}") from error
    report = {name: [_named(each) for each in value] if isinstance(value, list) else value
              for name, value in found._asdict().items()}  # fmt: skip
    return Audit(found.consistent, report, story)


def _named(finding: Any) -> Any:
    """A finding with the names of its fields, which a tuple loses in JSON."""
    return finding._asdict() if hasattr(finding, "_asdict") else finding


def show(terminal: Terminal, audit: Audit) -> None:
    """The story, then what was counted and found, then the verdict."""
    terminal.table(("POSITION", "AT", "STREAM", "EVENT", "DETAIL"), map(cells, audit.story), "the log is empty")
    if len(audit.story) == STORY_MAX:
        terminal.say(f"the first {STORY_MAX} events are told; name a stream or a work item for others")
    terminal.print("")
    verdict = "consistent" if audit.consistent else "VIOLATED"
    terminal.facts([*findings(audit.report), ("verdict", verdict)])


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
