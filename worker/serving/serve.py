"""The worker's front door for invocations: `tenure.serve.v1.<node>.<generation>.<deployment>`.

One subscription for all deployments of the generation, so that every request is answered: by the resident's
intake, or with a code that says why not. Requests are decoded strictly, once here to admit them and once in the
model process. What is too large for a message goes by reference, both ways. After the session's local end
nothing is answered any more: a newer worker may be serving already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from schemas.codes import Code, Refusal
from schemas.serving import ByReference, Cancel, Cancelled, Failure, ServeAnswer, ServeRequest
from schemas.subjects import serve_subject
from schemas.tokens import MESSAGE_BYTES_MAX
from worker.serving.intake import Intake, Respond, failure
from worker.serving.references import References
from worker.serving.residents import Residents

_log = structlog.get_logger(__name__)
_decoder: msgspec.msgpack.Decoder[ServeRequest] = msgspec.msgpack.Decoder(ServeRequest)
_encode = msgspec.msgpack.Encoder().encode


class Server:
    """Answers invocations for one generation."""

    def __init__(self, client: Client, node_id: str, residents: Residents, may_answer: Callable[[], bool]) -> None:
        self._client = client
        self._node_id = node_id
        self._residents = residents
        self._may_answer = may_answer
        self._references = References(client, node_id)
        self._fetching: set[asyncio.Task[None]] = set()
        self._fetching_by_id: dict[tuple[str, str], asyncio.Task[None]] = {}  # deployment and invocation
        self._subscription: Subscription | None = None
        self._closing = False

    async def open(self) -> None:
        subject = serve_subject(self._node_id, self._residents.generation, "*")
        self._subscription = await self._client.subscribe(subject, cb=self.handle)

    async def close(self) -> None:
        self._closing = True
        for task in self._fetching:
            task.cancel()
        if self._subscription is not None:
            try:
                await self._subscription.unsubscribe()
            except NatsError as error:
                _log.info("serve_unsubscribe_failed", error=repr(error))

    async def handle(self, message: Msg) -> None:
        """Quick by design: callbacks of one subscription run one after the other."""
        if not message.reply:
            return

        async def respond(body: bytes) -> None:
            await self._respond(message, body)

        try:
            answer = self._admit(message, respond)
        except Refusal as refusal:
            answer = failure(refusal.code, refusal.message)
        if answer is not None:
            await self._respond(message, _encode(answer))

    def _admit(self, message: Msg, respond: Respond) -> ServeAnswer | None:
        """Hand the invocation to its resident; an answer where there is one at once. Raises Refusal."""
        deployment_id = message.subject.rpartition(".")[2]
        request = _decoded(message.data)
        if isinstance(request, Cancel):  # also while it drains: what is under way may take long
            return Cancelled(self._cancel(deployment_id, request.invocation_id))
        if isinstance(request, ByReference):
            self._begin_fetch(deployment_id, request, respond)
            return None
        self._intake(deployment_id).accept(request, message.data, respond)
        return None

    def _cancel(self, deployment_id: str, invocation_id: str) -> bool:
        fetching = self._fetching_by_id.get((deployment_id, invocation_id))
        if fetching is not None:
            return fetching.cancel()
        resident = self._residents.get(deployment_id)
        if resident is None or resident.intake is None:
            raise Refusal(Code.NOT_RESIDENT, f"deployment `{deployment_id}` is not resident on this worker")
        return resident.intake.cancel(invocation_id)

    def _intake(self, deployment_id: str) -> Intake:
        """The intake of the deployment, taking invocations; raises Refusal."""
        resident = self._residents.get(deployment_id)
        if resident is None or resident.intake is None:
            raise Refusal(Code.NOT_RESIDENT, f"deployment `{deployment_id}` is not resident on this worker")
        if resident.state == "draining":
            raise Refusal(Code.DRAINING, f"deployment `{deployment_id}` takes no more requests")
        if resident.state == "unloading":
            raise Refusal(Code.NOT_RESIDENT, f"deployment `{deployment_id}` is being unloaded")
        return resident.intake

    def _begin_fetch(self, deployment_id: str, reference: ByReference, respond: Respond) -> None:
        fetching = asyncio.create_task(self._fetch(deployment_id, reference, respond))
        self._fetching.add(fetching)
        fetching.add_done_callback(self._fetching.discard)
        if reference.invocation_id is not None:
            key = (deployment_id, reference.invocation_id)
            self._fetching_by_id[key] = fetching
            fetching.add_done_callback(lambda _: self._fetching_by_id.pop(key, None))

    async def _fetch(self, deployment_id: str, reference: ByReference, respond: Respond) -> None:
        """The request behind the reference takes the way of any other; what the fetch took is off its deadline.

        What is refused without a fetch is dropped from the store.
        """
        begun = time.monotonic()
        try:
            try:
                self._intake(deployment_id)
                body = await self._references.fetch(reference)
            except asyncio.CancelledError:
                if self._closing:
                    raise
                raise Refusal(Code.INVOCATION_CANCELLED, "it was cancelled while its request was fetched") from None
            request = _decoded(body)
            if isinstance(request, Cancel | ByReference):
                raise Refusal(Code.INPUT_INVALID, "a reference leads to a request of the deployment's task")
            deadline_ms = request.deadline_ms or reference.deadline_ms
            left = None if deadline_ms is None else max(deadline_ms - (time.monotonic() - begun) * 1_000.0, 1.0)
            self._intake(deployment_id).accept(request, body, respond, left)
        except Refusal as refusal:
            await respond(_encode(failure(refusal.code, refusal.message)))
            await self._references.drop(reference)

    async def _respond(self, message: Msg, body: bytes) -> None:
        if not self._may_answer():
            return
        if len(body) > min(MESSAGE_BYTES_MAX, self._client.max_payload):
            body = _encode(await self._stored(body))
            if not self._may_answer():
                return
        try:
            await message.respond(body)
        except NatsError as error:
            _log.warning("answer_not_sent", subject=message.subject, error=repr(error))

    async def _stored(self, body: bytes) -> ByReference | Failure:
        try:
            return await self._references.put(body)
        except Refusal as refusal:
            return failure(refusal.code, refusal.message)


def _decoded(body: bytes) -> ServeRequest:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise Refusal(Code.INPUT_INVALID, f"the request can't be read: {error}") from error
