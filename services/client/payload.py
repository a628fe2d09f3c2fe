"""Payload: one request on its way to a worker, as itself or, over the bus's limit, as a reference to where it lies.

An object in a node's store is the client's to delete until a worker has read it, and no node's store is filled by what
was refused: whoever makes a payload ends with `discard`. Asked again at a node where nobody listened, the same object
serves; after a worker's word it does not, for the worker may have taken or deleted it.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid

import msgspec

from schemas.codes import Code, Refusal
from schemas.serving import PAYLOAD_BYTES_MAX, ByReference, payload_store
from schemas.tasks.requests import Request
from schemas.tokens import MESSAGE_BYTES_MAX
from services.client.errands import Errands
from services.client.wire import Wire

_encode = msgspec.msgpack.Encoder().encode


class Payload:
    """Of one invocation, for as many nodes as are asked, one after the other."""

    def __init__(self, wire: Wire, request: Request, errands: Errands) -> None:
        self._wire = wire
        self._errands = errands
        self._body = _encode(request)
        self._deadline_ms, self._invocation_id = request.deadline_ms, request.invocation_id
        self._stored: tuple[str, str] | None = None  # bucket and name
        self._reference = b""

    async def message_for(self, node: str) -> bytes:
        """What to send to this node's worker. Raises Refusal, and what the wire raises."""
        size = len(self._body)
        if size <= MESSAGE_BYTES_MAX:
            return self._body
        if size > PAYLOAD_BYTES_MAX:
            raise Refusal(Code.INPUT_TOO_LARGE, f"the request is {size} bytes; at most {PAYLOAD_BYTES_MAX}")
        bucket = payload_store(node)
        if self._stored is None or self._stored[0] != bucket:
            await self.discard()
            name = uuid.uuid4().hex
            self._stored = bucket, name  # before it is there: a store that fails may have left a part
            await self._wire.store(bucket, name, self._body)
            digest = await asyncio.to_thread(lambda: hashlib.sha256(self._body).hexdigest())
            self._reference = _encode(ByReference(name, size, digest, self._deadline_ms, self._invocation_id))
        return self._reference

    def taken(self) -> None:
        """A worker has read it, and so deleted it."""
        self._stored = None

    async def discard(self) -> None:
        """Delete what is stored, unless it was taken."""
        if self._stored is not None:
            stored, self._stored = self._stored, None
            await self._errands.run(self._wire.discard(*stored))
