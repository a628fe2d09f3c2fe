"""The worker's front door for invocations: `tenure.serve.v1.<node>.<generation>.<deployment>`.

One subscription for all deployments of the generation, so that every request is answered: by the resident's
intake, or with a code that says why not. Requests are decoded strictly. After the session's local end
nothing is answered any more: a newer worker may be serving already.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from schemas.codes import Code
from schemas.serving import EmbedRequest, EmbedResult, ServeAnswer
from schemas.subjects import serve_subject
from schemas.tokens import MESSAGE_BYTES_MAX
from worker.serving.intake import Intake, failure
from worker.serving.residents import Residents

_log = structlog.get_logger(__name__)
_decoder = msgspec.msgpack.Decoder(EmbedRequest)
_encoder = msgspec.msgpack.Encoder()


class Server:
    """Answers invocations for one generation."""

    def __init__(self, client: Client, node_id: str, residents: Residents, may_answer: Callable[[], bool]) -> None:
        self._client = client
        self._node_id = node_id
        self._residents = residents
        self._may_answer = may_answer
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        subject = serve_subject(self._node_id, self._residents.generation, "*")
        self._subscription = await self._client.subscribe(subject, cb=self.handle)

    async def close(self) -> None:
        if self._subscription is not None:
            try:
                await self._subscription.unsubscribe()
            except NatsError as error:
                _log.info("serve_unsubscribe_failed", error=repr(error))

    async def handle(self, message: Msg) -> None:
        """Quick by design: callbacks of one subscription run one after the other."""
        if not message.reply:
            return
        refusal = self._admit(message)
        if refusal is not None:
            await self._respond(message, refusal)

    def _admit(self, message: Msg) -> ServeAnswer | None:
        """Hand the invocation to its resident, or say why not. An empty list has its answer at once."""
        deployment_id = message.subject.rpartition(".")[2]
        resident = self._residents.get(deployment_id)
        if resident is None or resident.intake is None:
            return failure(Code.NOT_RESIDENT, f"deployment `{deployment_id}` is not resident on this worker")
        if resident.state == "draining":
            return failure(Code.DRAINING, f"deployment `{deployment_id}` takes no more requests")
        if resident.state == "unloading":
            return failure(Code.NOT_RESIDENT, f"deployment `{deployment_id}` is being unloaded")
        try:
            request = _decoder.decode(message.data)
        except msgspec.DecodeError as error:
            return failure(Code.INPUT_INVALID, f"the request can't be read: {error}")
        return self._offer(resident.intake, request, message)

    def _offer(self, intake: Intake, request: EmbedRequest, message: Msg) -> ServeAnswer | None:
        refusal = intake.refuse(request)
        if refusal is not None:
            return refusal
        if not request.texts:
            return intake.empty_result()

        async def respond(answer: ServeAnswer) -> None:
            await self._respond(message, answer)

        intake.accept(request, respond)
        return None

    async def _respond(self, message: Msg, answer: ServeAnswer) -> None:
        if not self._may_answer():
            return
        body = _encoder.encode(answer)
        if len(body) > MESSAGE_BYTES_MAX and isinstance(answer, EmbedResult):
            body = _encoder.encode(
                failure(
                    Code.INPUT_TOO_LARGE, f"the answer takes {len(body)} bytes; a message holds {MESSAGE_BYTES_MAX}"
                )
            )
        try:
            await message.respond(body)
        except NatsError as error:
            _log.warning("answer_not_sent", subject=message.subject, error=repr(error))
