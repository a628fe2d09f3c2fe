"""Payloads by reference: requests and answers over the bus's limit, in this node's object store.

Fetched bytes are checked for size and SHA-256 before anybody reads them. A reference is good for one try: a request's
object is deleted once fetched, and by `drop` when its request is refused without a whole fetch, so that what was
refused does not fill the store for everybody. At most FETCHES_MAX are fetched at once, each within FETCH_SECONDS_MAX;
what waits longer is OVERLOADED. The control plane makes the store; a worker without it can still do all that fits in a
message.

Chunks are asked for one by one. The client library would read them through a consumer, which a node's login may not
have here: what a node writes, no consumer may carry on to a subject of the node's choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from schemas.codes import Code, Refusal
from schemas.serving import PAYLOAD_BYTES_MAX, ByReference, payload_store

FETCHES_MAX = 4
FETCHES_WAITING_MAX = 64
FETCH_SECONDS_MAX = 60.0
DROP_SECONDS_MAX = 5.0
_FAILURES = (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError)


class References:
    """The worker's side of the object store."""

    def __init__(self, client: Client, node_id: str) -> None:
        self._js = client.jetstream()
        self._name = payload_store(node_id)
        self._turns = asyncio.Semaphore(FETCHES_MAX)
        self._waiting = 0

    async def fetch(self, reference: ByReference) -> bytes:
        """The bytes, whole and as described; raises Refusal."""
        if self._waiting >= FETCHES_WAITING_MAX:
            raise Refusal(Code.OVERLOADED, f"{self._waiting} payloads wait to be fetched; that is the bound")
        self._waiting += 1
        try:
            async with self._turns, asyncio.timeout(FETCH_SECONDS_MAX):
                return await self._fetch(reference)
        except _FAILURES as error:
            message = f"payload `{reference.object}` could not be fetched: {error!r}"
            raise Refusal(Code.PAYLOAD_UNAVAILABLE, message) from error
        finally:
            self._waiting -= 1

    async def _fetch(self, reference: ByReference) -> bytes:
        store = await self._js.object_store(self._name)
        about = await store.get_info(reference.object)
        if about.size != reference.bytes:  # before a byte of it is read
            found = f"holds {about.size} bytes; {reference.bytes} were announced"
            raise Refusal(Code.PAYLOAD_UNAVAILABLE, f"payload `{reference.object}` {found}")
        body = await self._chunks(f"$O.{self._name}.C.{about.nuid}", reference.bytes)
        await self.drop(reference)
        if len(body) != reference.bytes or hashlib.sha256(body).hexdigest() != reference.sha256:
            raise Refusal(
                Code.PAYLOAD_UNAVAILABLE, f"payload `{reference.object}` is not the bytes that were announced"
            )
        return body

    async def _chunks(self, subject: str, size: int) -> bytes:
        """What lies on this subject, in order, until there are so many bytes."""
        whole = bytearray()
        last = 0
        while len(whole) < size:
            message = await self._js.get_msg(f"OBJ_{self._name}", seq=last + 1, subject=subject, next=True)
            whole += message.data or b""
            last = message.seq or last + 1
        return bytes(whole)

    async def drop(self, reference: ByReference) -> None:
        """Delete the object, within a bound and quietly: what is gone already is no failure, and it ends by age."""
        with contextlib.suppress(*_FAILURES):
            async with asyncio.timeout(DROP_SECONDS_MAX):
                store = await self._js.object_store(self._name)
                await store.delete(reference.object)

    async def put(self, body: bytes) -> ByReference:
        """Store an answer; raises Refusal."""
        if len(body) > PAYLOAD_BYTES_MAX:
            raise Refusal(Code.INPUT_TOO_LARGE, f"the answer takes {len(body)} bytes; the bound is {PAYLOAD_BYTES_MAX}")
        name = uuid.uuid4().hex
        try:
            async with asyncio.timeout(FETCH_SECONDS_MAX):
                store = await self._js.object_store(self._name)
                await store.put(name, body)
        except _FAILURES as error:
            raise Refusal(Code.PAYLOAD_UNAVAILABLE, f"the answer could not be stored: {error!r}") from error
        return ByReference(name, len(body), hashlib.sha256(body).hexdigest())
