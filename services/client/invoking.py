"""Invocations from the client's side: one answer, an answer with pieces ahead, and a cancel.

* A request over the bus's limit goes by reference into the object store of the node asked, an answer comes so; size
  and SHA-256 are checked.
* Nodes are asked in turn until one listens; the log only orders them. The worker decides: it holds the deployment, or
  it refuses.
* `stream` yields the pieces as they come and the whole answer last. Whoever stops listening before has the invocation
  cancelled.
* An answer counts only from exactly what was deployed (see `answers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncGenerator, Sequence

import msgspec

from projections.rows import DeploymentRow
from schemas import subjects
from schemas.codes import Code, Refusal
from schemas.serving import PAYLOAD_BYTES_MAX, Answer, ByReference, Cancel, Cancelled, ServeAnswer, payload_store
from schemas.tasks.requests import Request
from schemas.tasks.text import TextChunk
from schemas.tokens import MESSAGE_BYTES_MAX
from services.client.answers import answer_of, checked
from services.client.wire import NoResponder, Silent, Unreachable, Wire

INVOKE_TIMEOUT_S = 60.0
MARGIN_S = 2.0  # on top of the invocation's own deadline
CANCEL_TIMEOUT_S = 2.0

Targets = Sequence[tuple[str, str]]  # node and generation, in the order to ask
_encode = msgspec.msgpack.Encoder().encode


class Invoker:
    """One deployment's invocations over one wire."""

    def __init__(self, wire: Wire, deployment: DeploymentRow, targets: Targets) -> None:
        self._wire = wire
        self._deployment = deployment
        self._targets = targets

    async def invoke(self, request: Request) -> Answer:
        """The whole answer. Raises Refusal."""
        body, timeout_s = _encode(request), _timeout_s(request)
        for node, generation in self._targets:
            subject = subjects.serve_subject(node, generation, self._deployment.id)
            try:
                payload = await self._payload(node, request, body)
                data = await self._wire.request(subject, payload, timeout_s)
                return answer_of(self._deployment, generation, await self._whole(node, data))
            except NoResponder:
                continue
            except Silent as error:
                raise _silent(node, timeout_s) from error
            except Unreachable as error:
                raise Refusal(Code.UNAVAILABLE, str(error)) from error
        raise self._not_served()

    async def stream(self, request: Request) -> AsyncGenerator[TextChunk | Answer]:
        """Pieces, then the whole answer. Raises Refusal."""
        if request.invocation_id is None:
            request = msgspec.structs.replace(request, invocation_id=uuid.uuid4().hex)
        for node, generation in self._targets:
            pieces = self._stream(request, node, generation)
            try:
                async with contextlib.aclosing(pieces):
                    async for piece in pieces:
                        yield piece
                return
            except NoResponder:
                continue
        raise self._not_served()

    async def _stream(self, request: Request, node: str, generation: str) -> AsyncGenerator[TextChunk | Answer]:
        timeout_s, ended = _timeout_s(request), False
        subject = subjects.serve_subject(node, generation, self._deployment.id)
        try:
            payload = await self._payload(node, request, _encode(request))
            async with contextlib.aclosing(self._wire.replies(subject, payload, timeout_s)) as replies:
                async for data in replies:
                    answer = await self._whole(node, data)
                    if isinstance(answer, TextChunk):
                        yield answer
                        continue
                    ended = True
                    yield answer_of(self._deployment, generation, answer)
                    return
        except NoResponder:
            ended = True
            raise
        except Silent as error:
            raise _silent(node, timeout_s) from error
        except Unreachable as error:
            raise Refusal(Code.UNAVAILABLE, str(error)) from error
        except Refusal:
            ended = True
            raise
        finally:
            if not ended and request.invocation_id is not None:
                await self._cancel_quietly(node, generation, request.invocation_id)

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

    async def _cancel_quietly(self, node: str, generation: str, invocation_id: str) -> None:
        """Also while this task itself is being cancelled: the worker should not compute for nobody."""
        with contextlib.suppress(NoResponder, Silent, Refusal):
            await asyncio.shield(self._cancel(node, generation, invocation_id))

    async def _payload(self, node: str, request: Request, body: bytes) -> bytes:
        """What to send: the request, or a reference to it."""
        if len(body) <= MESSAGE_BYTES_MAX:
            return body
        if len(body) > PAYLOAD_BYTES_MAX:
            raise Refusal(Code.INPUT_TOO_LARGE, f"the request is {len(body)} bytes; at most {PAYLOAD_BYTES_MAX}")
        name = uuid.uuid4().hex
        await self._wire.store(payload_store(node), name, body)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
        return _encode(ByReference(name, len(body), digest, request.deadline_ms))

    async def _whole(self, node: str, data: bytes) -> ServeAnswer:
        """What was answered, fetched where `data` is a reference to it. Raises Refusal."""
        answer = checked(data)
        if not isinstance(answer, ByReference):
            return answer
        body = await self._wire.fetch(payload_store(node), answer.object)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
        if (len(body), digest) != (answer.bytes, answer.sha256):
            raise Refusal(Code.PAYLOAD_UNAVAILABLE, f"payload `{answer.object}` is not what was announced")
        return checked(body)

    def _not_served(self) -> Refusal:
        asked = ", ".join(node for node, _ in self._targets) or "no node"
        return Refusal(Code.NOT_RESIDENT, f"deployment {self._deployment.name!r} is not served now (asked: {asked})")


def _timeout_s(request: Request) -> float:
    return INVOKE_TIMEOUT_S if request.deadline_ms is None else request.deadline_ms / 1_000 + MARGIN_S


def _silent(node: str, timeout_s: float) -> Refusal:
    return Refusal(Code.DEADLINE_EXCEEDED, f"node {node} did not answer in {timeout_s:g} s")
