"""The object stores for payloads by reference, one for each node.

The control plane makes them, so that neither a worker's login nor an operator's needs the right to make streams. A
store that is missing (a new node, a wiped bus) is made at the next look, every LOOK_SECONDS; until then payloads over
the bus's limit are refused on that node and everything else works. Existing ones are left as an operator set them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import nats.errors
import nats.js.errors
import structlog
from nats.aio.client import Client
from nats.js.api import ObjectStoreConfig, StorageType

from schemas.serving import PAYLOAD_AGE_SECONDS_MAX, PAYLOAD_STORE_BYTES_MAX, payload_store

LOOK_SECONDS = 5.0
NAMES_SECONDS_MAX = 10.0
_FAILURES = (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError)

log = structlog.get_logger()


class PayloadStores:
    """`nodes` says which nodes there are now."""

    def __init__(self, nc: Client, nodes: Callable[[], Iterable[str]]) -> None:
        self._js = nc.jetstream()
        self._nodes = nodes

    async def step(self) -> None:
        """Make what is missing. What fails is logged and tried again at the next look."""
        try:
            async with asyncio.timeout(NAMES_SECONDS_MAX):
                there = {info.config.name for info in await self._js.streams_info()}
                for node_id in sorted(self._nodes()):
                    if f"OBJ_{payload_store(node_id)}" not in there:
                        await self._make(node_id)
        except _FAILURES as error:
            log.warning("payloads.failed", error=repr(error))

    async def _make(self, node_id: str) -> None:
        config = ObjectStoreConfig(
            description=f"payloads of node {node_id}",
            ttl=PAYLOAD_AGE_SECONDS_MAX,
            max_bytes=PAYLOAD_STORE_BYTES_MAX,
            storage=StorageType.FILE,
        )
        await self._js.create_object_store(payload_store(node_id), config=config)
        log.info("payloads.made", node_id=node_id)

    async def run(self) -> None:
        while True:
            await self.step()
            await asyncio.sleep(LOOK_SECONDS)
