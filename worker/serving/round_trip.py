"""Round trips to the bus and back (`PING`, `PONG`), one at a time, made so that nats-py stays sound.

nats-py's `flush` gives up after its timeout and then stumbles over the PONG that comes later all the same: its reader
ends and the connection is deaf. So a trip is never given up while its PONG may come; who asks for one bounds the wait
itself, and while a trip is out the next asker hears at once that the bus does not answer. After a reconnect nats-py
has forgotten its PINGs; a trip from before is dropped then.
"""

from __future__ import annotations

import asyncio

from nats.aio.client import Client

NEVER_S = 10**9  # what `flush` is told; see above


class RoundTrips:
    """Callable: True when the bus has answered, False where it does not."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._out: asyncio.Task[None] | None = None
        self._reconnects = 0

    async def __call__(self) -> bool:
        if self._out is not None and not self._out.done():
            if self._reconnects == self._client.stats["reconnects"]:
                return False
            self._out.cancel()
        if not self._client.is_connected:
            return False
        self._reconnects = self._client.stats["reconnects"]
        self._out = out = asyncio.create_task(self._client.flush(NEVER_S))
        await asyncio.wait([out])  # an asker that is cancelled leaves it to go on
        return not out.cancelled() and out.exception() is None
