"""Invocations: MessagePack on `tenure.serve.v1.<node>.<generation>.<deployment>`.

A message is a request of the deployment's task, a `ByReference` to one, or a `Cancel`. The reply to a request is one
`Answer` or one `Failure` with a code; a partial result is never returned as a whole one. A request that asked to be
streamed gets `TextChunk`s on the same reply subject before it.

A request or an answer over the bus's limit goes by reference: its bytes lie in the node's object store (see
`payload_store`) under a random name, and `ByReference` travels in its place. Whoever fetches checks size and SHA-256.
The worker deletes a request's object when it has fetched or refused it, the client an answer's, and a request's that no
worker took; what nobody deletes ends after PAYLOAD_AGE_SECONDS_MAX. Each node has a store of its own, so that no
node's login reads what is for another.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from schemas.codes import Code
from schemas.tasks.invocation import DeadlineMs
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import TextChunk
from schemas.tokens import Digest, Token

PAYLOAD_BYTES_MAX = 128 * 1024 * 1024
PAYLOAD_AGE_SECONDS_MAX = 600
PAYLOAD_STORE_BYTES_MAX = 512 * 1024 * 1024  # of one node; the server sets it aside


def payload_store(node_id: str) -> str:
    """The name of a node's JetStream object store; its stream is `OBJ_<name>`."""
    return f"tenure-payloads-{node_id}"


class ByReference(Struct, frozen=True, tag="by_reference", forbid_unknown_fields=True):
    """Where the message's bytes lie. `deadline_ms` counts from the receipt of this message, the fetch included.

    `invocation_id` is the request's own, so that it can be cancelled while it is fetched.
    """

    object: Token
    bytes: Annotated[int, Meta(ge=1, le=PAYLOAD_BYTES_MAX)]
    sha256: Digest
    deadline_ms: DeadlineMs | None = None
    invocation_id: Token | None = None


class Cancel(Struct, frozen=True, tag="cancel", forbid_unknown_fields=True):
    """Stop this invocation: one that waits ends as INVOCATION_CANCELLED, one under way at its next step.

    Where a model can give what it has (text generation), the answer is that, with `finish_reason` `cancelled`.
    The reply is a `Cancelled`; an unknown id is no error, for the answer may be on its way.
    """

    invocation_id: Token


class Cancelled(Struct, frozen=True, tag="cancel_seen", forbid_unknown_fields=True):
    found: bool


class Answer(Struct, frozen=True, tag="answer", forbid_unknown_fields=True):
    """`result`, and what gave it: artifact and profile digests and the worker's generation."""

    result: Result
    artifact_id: str
    profile_id: str
    generation: str
    compute_ms: float


class Failure(Struct, frozen=True, tag="failure", forbid_unknown_fields=True):
    code: Code
    message: str
    advice: str = ""


ServeRequest = Request | ByReference | Cancel
ServeAnswer = Answer | Failure | TextChunk | ByReference | Cancelled
