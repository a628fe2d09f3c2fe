"""`tenure events tail`: what happened, from the event copy on the bus.

The copy holds each event once, in log order; Postgres is the record, which `tenure audit replay` reads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct

from schemas import subjects
from schemas.codes import Code, Refusal
from schemas.events import STREAM_NOUNS
from schemas.tokens import is_token
from services.cli import options
from services.cli.context import Context, run
from services.cli.screen.formats import short
from services.client.answers import position_of
from services.client.wire import Published, Unreachable

LAST_DEFAULT = 20
DETAIL_CHARACTERS = 40
# What a person sees of an event, in this order; ids and times have columns of their own.
DETAIL_FIELDS = (
    "name", "kind", "node_id", "stage", "state", "generation", "attempt", "cause", "code", "reason", "message",
    "approver", "status", "capability", "location", "detail",
)  # fmt: skip

app = typer.Typer(no_args_is_help=True, help="Events: everything that happened, in order.")


class Told(Struct, frozen=True):
    """One event as the bus tells it. `position` is the log's, `topic` as in schemas.events."""

    position: int
    stream: str
    topic: str
    at_ms: int
    event: dict[str, Any]


def told(message: Published) -> Told:
    """The event in a message of the copy."""
    parts = message.subject.removeprefix(subjects.EVT + ".").split(".")
    event = msgspec.json.decode(message.data, type=dict[str, Any])
    topic = message.headers.get(subjects.HEADER_TOPIC, parts[-1])
    return Told(position_of(message), f"{parts[0]}-{'.'.join(parts[1:-1])}", topic, int(event.get("at_ms", 0)), event)


def subject_for(stream: str | None) -> str:
    """The subject filter for one stream, `<noun>-<id>`, or for everything."""
    if stream is None:
        return f"{subjects.EVT}.>"
    noun, dash, ident = stream.partition("-")
    if noun not in STREAM_NOUNS or not dash or not is_token(ident):
        nouns = ", ".join(STREAM_NOUNS)
        raise Refusal(Code.UNKNOWN_STREAM, f"{stream!r} is not <noun>-<id> with a noun of {nouns}")
    return f"{subjects.EVT}.{noun}.{ident}.>"


def details(event: Mapping[str, Any]) -> str:
    """The few fields that tell an event's story."""
    return " ".join(f"{name.removesuffix('_id')}={_brief(event[name])}" for name in DETAIL_FIELDS if event.get(name))


def _brief(value: Any) -> str:
    text = str(value).replace("\n", " ")
    return text if len(text) <= DETAIL_CHARACTERS else text[: DETAIL_CHARACTERS - 1] + "…"


def cells(each: Told) -> tuple[object, ...]:
    noun, _, ident = each.stream.partition("-")
    moment = time.strftime("%H:%M:%S", time.localtime(each.at_ms / 1_000)) + f".{each.at_ms % 1_000:03d}"
    return each.position, moment, f"{noun}-{short(ident)}", each.topic, details(each.event)


def fixed(each: Told) -> str:
    """One event as a line of fixed columns, for an endless table."""
    position, moment, stream, topic, detail = cells(each)
    return f"{position:>8}  {moment}  {stream:<23}  {topic:<25}  {detail}"


@app.command("tail")
def tail_command(
    start: Annotated[int | None, typer.Option("--from", help="From this log position on.", min=0)] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Go on as events happen.")] = False,
    stream: Annotated[str | None, typer.Option("--stream", help="Only this stream, <noun>-<id>.")] = None,
    last: Annotated[int, typer.Option("--last", help="Without --from: so many events back.", min=1)] = LAST_DEFAULT,
    as_json: options.Json = False,
) -> None:
    """Show events in log order. With --follow and --json, one document a line."""

    async def command(context: Context) -> None:
        wire, subject = context.client.wire, subject_for(stream)
        found: list[Told] = []
        try:
            begin = 1 if stream is not None else -last
            if start is not None:
                begin = await wire.seek(subjects.STREAM_EVENTS, lambda message: position_of(message) >= start)
            async for message in wire.stream(subjects.STREAM_EVENTS, subject, begin, follow):
                each = told(message)
                if start is not None and each.position < start:
                    continue
                if not follow:
                    found.append(each)
                elif as_json:
                    context.terminal.line(each)
                else:
                    context.terminal.print(fixed(each))
        except Unreachable as error:
            raise Refusal(Code.UNAVAILABLE, str(error)) from error
        if not follow:
            show(context, found if start is not None else found[-last:])

    run(as_json, command)


def show(context: Context, found: list[Told]) -> None:
    columns = ("POSITION", "AT", "STREAM", "EVENT", "DETAIL")
    rows: Iterator[tuple[object, ...]] = map(cells, found)
    context.terminal.result({"events": found}, lambda: context.terminal.table(columns, rows, "no events"))
