"""Invocations from the client's side: one answer, an answer with pieces ahead, and a cancel.

* A request over the bus's limit goes by reference into the object store of the node asked (see `payload`), an answer
  comes so; size and SHA-256 are checked.
* Nodes are asked in turn until one listens; the log only orders them. The worker decides: it holds the deployment, or
  it refuses.
* Client and worker keep to one bound, which is sent as `deadline_ms`: the smaller of what the caller allows and what
  the profile's `invoke_ms` allows, or INVOKE_MS where neither is known. The client listens MARGIN_S longer.
* Every invocation has a name. One that ends without the worker's word (the caller was cancelled or left, or nobody
  answered in time) is cancelled at the worker: it should not compute for nobody.
* `stream` yields the pieces as they come and the whole answer last.
* An answer counts only from exactly what was deployed (see `answers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from projections.rows import DeploymentRow
from schemas import subjects
from schemas.codes import Code, Refusal
from schemas.serving import Answer, ByReference, Cancel, Cancelled, ServeAnswer, payload_store
from schemas.tasks.invocation import INVOKE_MS_MAX
from schemas.tasks.requests import Request
from schemas.tasks.text import TextChunk
from services.client.answers import answer_of, checked
from services.client.errands import Errands
from services.client.payload import Payload
from services.client.wire import NoResponder, Silent, Unreachable, Wire

INVOKE_MS = 60_000
MARGIN_S = 2.0  # on top of the invocation's own deadline
CANCEL_TIMEOUT_S = 2.0
FETCHES_MAX = 2  # of one answer, which was paid for

Targets = Sequence[tuple[str, str]]  # node and generation, in the order to ask
Again = Callable[[], Awaitable[Targets]]
_encode = msgspec.msgpack.Encoder().encode


class Invoker:
    """One deployment's invocations over one wire. `invoke_ms` is its profile's, None where it isn't known."""

    def __init__(
        self,
        wire: Wire,
        deployment: DeploymentRow,
        targets: Targets,
        invoke_ms: int | None = None,
        errands: Errands | None = None,
    ) -> None:
        self._wire = wire
        self._deployment = deployment
        self._targets = targets
        self._invoke_ms = invoke_ms
        self._errands = errands or Errands()

    async def invoke(self, request: Request, again: Again | None = None) -> Answer:
        """The whole answer. `again` gives the nodes to ask once more where no target holds it. Raises Refusal."""
        request = self._bounded(request)
        payload = Payload(self._wire, request, self._errands)
        try:
            try:
                return await self._invoke(request, payload)
            except Refusal as refusal:
                if again is None or refusal.code is not Code.NOT_RESIDENT:
                    raise
            self._targets = await again()
            return await self._invoke(request, payload)
        finally:
            await payload.discard()

    async def _invoke(self, request: Request, payload: Payload) -> Answer:
        for node, generation in self._targets:
            with contextlib.suppress(NoResponder):
                async with self._asking(request, payload, node, generation) as asking:
                    data = await self._wire.request(asking.subject, asking.message, asking.timeout_s)
                    asking.under_way = False
                    answer = await self._whole(node, data)
                    payload.taken()
                    return answer_of(self._deployment, generation, answer)
        raise self._not_served()

    async def stream(self, request: Request) -> AsyncGenerator[TextChunk | Answer]:
        """Pieces, then the whole answer. Raises Refusal."""
        request = self._bounded(request)
        payload = Payload(self._wire, request, self._errands)
        try:
            for node, generation in self._targets:
                pieces = self._stream(request, payload, node, generation)
                with contextlib.suppress(NoResponder):
                    async with contextlib.aclosing(pieces):
                        async for piece in pieces:
                            yield piece
                    return
            raise self._not_served()
        finally:
            await payload.discard()

    async def _stream(
        self, request: Request, payload: Payload, node: str, generation: str
    ) -> AsyncGenerator[TextChunk | Answer]:
        async with self._asking(request, payload, node, generation) as asking:
            replies = self._wire.replies(asking.subject, asking.message, asking.timeout_s)
            async with contextlib.aclosing(replies):
                async for data in replies:
                    answer = await self._whole(node, data)
                    payload.taken()
                    if isinstance(answer, TextChunk):
                        yield answer
                        continue
                    asking.under_way = False
                    yield answer_of(self._deployment, generation, answer)
                    return

    @contextlib.asynccontextmanager
    async def _asking(self, request: Request, payload: Payload, node: str, generation: str) -> AsyncIterator[_Asking]:
        """One node's turn. The wire's failures become refusals; what is under way at the end is cancelled."""
        asking = _Asking(subjects.serve_subject(node, generation, self._deployment.id), _timeout_s(request))
        try:
            asking.message = await payload.message_for(node)
            asking.under_way = True
            yield asking
        except NoResponder:
            asking.under_way = False
            raise
        except Silent as error:
            raise _silent(node, asking.timeout_s) from error
        except Unreachable as error:
            raise Refusal(Code.UNAVAILABLE, str(error)) from error
        except Refusal:  # the worker's word
            asking.under_way = False
            await payload.discard()
            raise
        finally:
            if asking.under_way and request.invocation_id is not None:
                await self._errands.run(self._cancel(node, generation, request.invocation_id))

    async def cancel(self, invocation_id: str) -> bool:
        """Whether a node that serves the deployment had such an invocation under way. Raises Refusal."""
        found = False
        for node, generation in self._targets:
            with contextlib.suppress(NoResponder, Silent):
                found = await self._cancel(node, generation, invocation_id) or found
        return found

    async def _cancel(self, node: str, generation: str, invocation_id: str) -> bool:
        subject = subjects.serve_subject(node, generation, self._deployment.id)
        try:
            data = await self._wire.request(subject, _encode(Cancel(invocation_id)), CANCEL_TIMEOUT_S)
        except Unreachable as error:
            raise Refusal(Code.UNAVAILABLE, str(error)) from error
        answer = checked(data)
        return isinstance(answer, Cancelled) and answer.found

    def _bounded(self, request: Request) -> Request:
        """The request as it is sent: with a name, and with the bound that client and worker keep to."""
        profile_ms = INVOKE_MS_MAX if self._invoke_ms is None else min(self._invoke_ms, INVOKE_MS_MAX)
        if request.deadline_ms is not None:
            deadline_ms = min(request.deadline_ms, profile_ms)
        else:
            deadline_ms = INVOKE_MS if self._invoke_ms is None else profile_ms
        name = request.invocation_id or uuid.uuid4().hex
        return msgspec.structs.replace(request, deadline_ms=deadline_ms, invocation_id=name)

    async def _whole(self, node: str, data: bytes) -> ServeAnswer:
        """What was answered, fetched where `data` is a reference to it. Raises Refusal."""
        answer = checked(data)
        if not isinstance(answer, ByReference):
            return answer
        body = await self._fetched(payload_store(node), answer.object)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
        if (len(body), digest) != (answer.bytes, answer.sha256):
            raise Refusal(Code.PAYLOAD_UNAVAILABLE, f"payload `{answer.object}` is not what was announced")
        return checked(body)

    async def _fetched(self, bucket: str, name: str) -> bytes:
        """An answer from the store. One that can't be had is not left there. Raises Unreachable."""
        tries = 0
        try:
            while True:
                tries += 1
                try:
                    return await self._wire.fetch(bucket, name)
                except Unreachable:
                    if tries == FETCHES_MAX:
                        raise
        except (Unreachable, asyncio.CancelledError):
            await self._errands.run(self._wire.discard(bucket, name))
            raise

    def _not_served(self) -> Refusal:
        asked = ", ".join(node for node, _ in self._targets) or "no node"
        return Refusal(Code.NOT_RESIDENT, f"deployment {self._deployment.name!r} is not served now (asked: {asked})")


class _Asking:
    """One node's turn: what is sent where, how long an answer is listened for, and whether one may be computed."""

    def __init__(self, subject: str, timeout_s: float) -> None:
        self.subject = subject
        self.timeout_s = timeout_s
        self.message = b""
        self.under_way = False


def _timeout_s(request: Request) -> float:
    return (request.deadline_ms or INVOKE_MS) / 1_000 + MARGIN_S


def _silent(node: str, timeout_s: float) -> Refusal:
    return Refusal(Code.DEADLINE_EXCEEDED, f"node {node} did not answer in {timeout_s:g} s")
