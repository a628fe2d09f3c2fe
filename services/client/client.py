"""Client: what a program needs to use a Tenure control plane, over one bus connection.

* `command` sends one command and returns its Reply. The command_id is chosen once; when no answer comes it
  is sent again under the same id, a bounded number of times, so a command is carried out at most once. When
  still no answer comes the outcome is not known, and the refusal says so and names the id.
* `query`, `rows` and `one` read projected tables; `min_position` reads one's own writes. `one` takes an id,
  an unambiguous prefix of at least `PREFIX_CHARACTERS_MIN` characters, or a name.
* `wait_work` follows one work item to its end. Events wake it and name the stages; the table decides.
* `live` asks a node what it holds at this moment. None is silence, and silence is never an answer.
* `invoke`, `stream` and `cancel` speak straight to a worker and check that what answered is what was deployed. Where a
  deployment is served is remembered for a moment (see `targets`): an invocation that nobody there took in is sent once
  more, to where the tables say it is served now. A stream and a cancel ask the tables each time.
* `close` waits a bounded time for what calls that were cancelled left to do (see `errands`).

Refusals travel as `schemas.codes.Refusal`. No connection and no listener are UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from projections.rows import TABLES, DeploymentRow, Row, WorkRow
from schemas import subjects
from schemas.codes import ADVICE, Code, Refusal
from schemas.commands import BY_SUBJECT
from schemas.live import LiveAnswer
from schemas.queries import QUERY_ROWS_MAX, Query, QueryReply
from schemas.replies import Reply
from schemas.serving import Answer
from schemas.tasks.requests import Request
from schemas.tasks.text import TextChunk
from schemas.tokens import MESSAGE_BYTES_MAX
from schemas.work import FINAL_STAGES
from services.client.answers import live_of, position_of, stage_of
from services.client.errands import Errands
from services.client.invoking import Invoker, Targets
from services.client.nats_wire import NatsWire
from services.client.operator import credentials, default_actor
from services.client.targets import KnownTargets
from services.client.wire import NoResponder, Silent, Unreachable, Wire
from services.settings import Settings

COMMAND_TIMEOUT_S = 10.0
COMMAND_SENDINGS_MAX = 3
QUERY_MARGIN_S = 2.0  # on top of what the query itself may wait
LIVE_TIMEOUT_S = 1.0
QUERY_ATTEMPTS_MAX = 8
PAGES_MAX = 200
POLL_S = 1.0
WAIT_MARGIN_S = 30.0  # after the deadline of the work itself
APPEAR_TIMEOUT_S = 10.0
PREFIX_CHARACTERS_MIN = 4
UNKNOWN_OUTCOME = "Look at what changed before you repeat it; the same command_id gets the first outcome again."

R = TypeVar("R", bound=Row)
OnStage = Callable[[str], None]
TABLE_OF: dict[type[Row], str] = {struct: table for table, struct in TABLES.items()}


class Client:
    """One connection. `actor` is put into every command."""

    def __init__(self, wire: Wire, actor: str) -> None:
        self.wire = wire
        self.actor = actor
        self._known = KnownTargets(self)
        self._errands = Errands()

    @classmethod
    async def connect(cls, settings: Settings, actor: str | None = None) -> Client:
        known = settings.resolved()
        if known.nats_url is None:
            raise Refusal(
                Code.UNAVAILABLE,
                f"no servers are known: nothing runs under {known.data_dir} and TENURE_NATS_URL is not set",
                {"advice": "Start them with `tenure up`, or set TENURE_NATS_URL or TENURE_DATA_DIR."},
            )
        user, password = credentials(known)
        try:
            wire = await NatsWire.connect(known.nats_url, user, password, "tenure-cli")
        except Unreachable as error:
            if error.refused_login:
                advice = "Check TENURE_NATS_USER and TENURE_NATS_PASSWORD."
                raise Refusal(Code.CREDENTIAL_REFUSED, str(error), {"advice": advice}) from error
            raise Refusal(Code.UNAVAILABLE, str(error)) from error
        return cls(wire, actor or default_actor())

    async def close(self) -> None:
        try:
            await self._errands.done()
        finally:
            await self.wire.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def command(self, name: str, /, *, command_id: str | None = None, **fields: Any) -> Reply:
        """Send the command `<noun>.<verb>` and return its outcome, accepted or rejected."""
        ident = command_id or uuid.uuid4().hex
        body = {"command_id": ident, "actor": self.actor, **fields}
        try:
            command = msgspec.convert(msgspec.to_builtins(body), BY_SUBJECT[name])
        except msgspec.ValidationError as error:
            raise Refusal(Code.COMMAND_MALFORMED, f"{name}: {error}") from error
        payload = msgspec.json.encode(command)
        if len(payload) > MESSAGE_BYTES_MAX:
            raise Refusal(Code.MESSAGE_TOO_LARGE, f"{name} is {len(payload)} bytes; at most {MESSAGE_BYTES_MAX}")
        for _ in range(COMMAND_SENDINGS_MAX):
            try:
                answer = await self.wire.request(subjects.rpc_subject(name), payload, COMMAND_TIMEOUT_S)
            except Silent:
                continue
            except NoResponder as error:
                raise Refusal(Code.UNAVAILABLE, "no control plane is listening") from error
            except Unreachable as error:
                raise Refusal(Code.UNAVAILABLE, str(error), {"advice": UNKNOWN_OUTCOME, "command_id": ident}) from error
            return msgspec.json.decode(answer, type=Reply)
        waited_s = round(COMMAND_SENDINGS_MAX * COMMAND_TIMEOUT_S)
        message = f"{name} was sent {COMMAND_SENDINGS_MAX} times and not answered in {waited_s} s; command_id {ident}"
        raise Refusal(Code.UNAVAILABLE, message, {"advice": UNKNOWN_OUTCOME, "command_id": ident})

    async def accepted(self, name: str, /, *, command_id: str | None = None, **fields: Any) -> Reply:
        """Like `command`, with a rejection raised as the Refusal it is."""
        reply = await self.command(name, command_id=command_id, **fields)
        if reply.outcome == "rejected":
            code = reply.code or Code.INTERNAL_ERROR
            advice = {"advice": reply.advice} if reply.advice and reply.advice != ADVICE[code] else {}
            raise Refusal(code, reply.message, {**reply.detail, **advice})
        return reply

    async def query(self, table: str, query: Query | None = None) -> QueryReply:
        """One page of a table. A refused query is raised as a Refusal."""
        asked = query or Query()
        timeout_s = asked.wait_ms / 1_000 + QUERY_MARGIN_S
        try:
            answer = await self.wire.request(subjects.query_subject(table), msgspec.json.encode(asked), timeout_s)
        except NoResponder as error:
            raise Refusal(Code.UNAVAILABLE, "no query service is listening") from error
        except Silent as error:
            raise Refusal(Code.UNAVAILABLE, f"the query service did not answer in {timeout_s:g} s") from error
        except Unreachable as error:
            raise Refusal(Code.UNAVAILABLE, str(error)) from error
        reply = msgspec.json.decode(answer, type=QueryReply)
        if reply.code is not None:
            raise Refusal(reply.code, reply.message, {"advice": reply.advice} if reply.advice else {})
        return reply

    async def rows(self, row: type[R], where: dict[str, str] | None = None, min_position: int | None = None) -> list[R]:
        """All rows of a table that match, page by page, at most PAGES_MAX pages. Pages shrink to fit a message."""
        found: list[R] = []
        limit = QUERY_ROWS_MAX
        for _ in range(PAGES_MAX):
            after = found[-1].id if found else None
            asked = Query(where=where or {}, after=after, limit=limit, min_position=min_position)
            try:
                reply = await self.query(TABLE_OF[row], asked)
            except Refusal as refusal:
                if refusal.code is not Code.MESSAGE_TOO_LARGE or limit == 1:
                    raise
                limit //= 2
                continue
            found += [msgspec.convert(each, row, strict=False) for each in reply.rows]
            if not reply.more or not reply.rows:
                return found
        raise Refusal(Code.MESSAGE_TOO_LARGE, f"{TABLE_OF[row]} has more rows than {PAGES_MAX} answers hold")

    async def one(self, row: type[R], reference: str, min_position: int | None = None) -> R:
        """The row a person means: by its exact name, its id, or an unambiguous prefix of its id."""
        table = TABLE_OF[row]
        if "name" in row.__struct_fields__:
            named = await self.rows(row, {"name": reference}, min_position)
            current = [each for each in named if not getattr(each, "retired", False)] or named
            if current:
                return _only(table, reference, current)
        reply = await self.query(table, Query(id=reference, min_position=min_position))
        found = [msgspec.convert(each, row, strict=False) for each in reply.rows]
        exact = [each for each in found if each.id == reference]
        if exact:
            return exact[0]
        if len(reference) < PREFIX_CHARACTERS_MIN or not found:
            raise Refusal(Code.UNKNOWN_STREAM, f"no {table} {reference!r}", {"advice": _listing(table)})
        return _only(table, reference, found)

    async def appear(self, row: type[R], ident: str, min_position: int | None = None) -> R:
        """The row with this id, waiting a bounded time for the projection to reach its creation."""
        ends = time.monotonic() + APPEAR_TIMEOUT_S
        async with self.wire.wakeups(f"{subjects.EVT}.{TABLE_OF[row]}.{ident}.>") as wakeups:
            while True:
                reply = await self.query(TABLE_OF[row], Query(where={"id": ident}, min_position=min_position))
                if reply.rows:
                    return msgspec.convert(reply.rows[0], row, strict=False)
                if time.monotonic() > ends:
                    raise Refusal(Code.UNKNOWN_STREAM, f"no {TABLE_OF[row]} {ident!r} after {APPEAR_TIMEOUT_S:g} s")
                await wakeups.next(POLL_S)

    async def wait_work(
        self, work_id: str, min_position: int | None = None, on_stage: OnStage | None = None
    ) -> WorkRow:
        """Follow a work item to its end. Raises DEADLINE_EXCEEDED when it has not ended well after its deadline."""
        told = 0  # the log position of what was last told, so that a late hint tells nothing old
        began = time.monotonic()
        async with self.wire.wakeups(f"{subjects.EVT}.work.{work_id}.>") as wakeups:
            while True:
                work = await self._work(work_id, min_position)
                if on_stage is not None and work.position > told:
                    told = work.position
                    on_stage(work.stage)
                if work.stage in FINAL_STAGES:
                    return work
                allowed_s = (work.deadline_ms - work.requested_at_ms) / 1_000 + WAIT_MARGIN_S
                if time.monotonic() - began > allowed_s:
                    message = f"work {work_id} is still {work.stage} after {allowed_s:.0f} s"
                    raise Refusal(Code.DEADLINE_EXCEEDED, message, {"advice": "Run `tenure doctor`."})
                hint = await wakeups.next(POLL_S)
                if hint is not None and position_of(hint) > told:
                    min_position = position_of(hint)
                    stage = stage_of(hint)
                    if stage is not None and on_stage is not None:
                        told = min_position
                        on_stage(stage)

    async def _work(self, work_id: str, min_position: int | None) -> WorkRow:
        """The row of a work item. A query service that is away for a moment is waited for, a bounded time."""
        for attempt in range(1, QUERY_ATTEMPTS_MAX + 1):
            try:
                reply = await self.query("work", Query(where={"id": work_id}, min_position=min_position))
            except Refusal as refusal:
                if refusal.code is not Code.UNAVAILABLE or attempt == QUERY_ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(POLL_S)
                continue
            if reply.rows:
                return msgspec.convert(reply.rows[0], WorkRow, strict=False)
            break
        raise Refusal(Code.UNKNOWN_STREAM, f"no work {work_id!r}", {"advice": _listing("work")})

    async def live(self, node_id: str, generation: str | None = None) -> LiveAnswer | None:
        """What the node says it holds now. With `generation`, an older one that answers first is heard out."""

        def enough(data: bytes) -> bool:
            answer = live_of(data)
            return answer is not None and (generation is None or answer.generation == generation)

        subject = subjects.live_subject(node_id)
        try:
            answers = await self.wire.gather(subject, b"", LIVE_TIMEOUT_S, enough)
        except Unreachable as error:
            raise Refusal(Code.UNAVAILABLE, str(error)) from error
        told = [answer for answer in map(live_of, answers) if answer is not None and answer.node_id == node_id]
        return next((answer for answer in told if answer.generation == generation), told[0] if told else None)

    async def invoke(self, deployment: DeploymentRow, request: Request, node_id: str | None = None) -> Answer:
        """The answer of a node that holds the deployment; see `invoking`."""
        with self._known.of((deployment.id, node_id)) as known:

            async def look() -> Targets:
                return await self._known.look_up(deployment, node_id)

            invoker = self._invoker(deployment, known or await look())
            return await invoker.invoke(request, look if known else None)

    async def stream(
        self, deployment: DeploymentRow, request: Request, node_id: str | None = None
    ) -> AsyncGenerator[TextChunk | Answer]:
        """Pieces of the answer as they come, then the whole; stopping early cancels. See `invoking`."""
        targets = await self._known.look_up(deployment, node_id)
        pieces = self._invoker(deployment, targets).stream(request)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def cancel(self, deployment: DeploymentRow, invocation_id: str, node_id: str | None = None) -> bool:
        """Whether there was such an invocation under way; it ends at its next step."""
        targets = await self._known.look_up(deployment, node_id)
        return await self._invoker(deployment, targets).cancel(invocation_id)

    def _invoker(self, deployment: DeploymentRow, targets: Targets) -> Invoker:
        return Invoker(self.wire, deployment, targets, self._known.invoke_ms(deployment), self._errands)


def _only(table: str, reference: str, found: Sequence[R]) -> R:
    if len(found) == 1:
        return found[0]
    ids = ", ".join(each.id[:12] for each in found[:5])
    raise Refusal(Code.CONFLICT, f"{reference!r} means {len(found)} of {table}: {ids}", {"advice": "Give the id."})


def _listing(table: str) -> str:
    commands = {"deployment": "tenure ps", "residency": "tenure ps"}
    return f"`{commands.get(table, f'tenure {table} list')}` shows what there is."
