"""For how long each node's worker has said nothing, as the query service has heard it. A hint for people.

An older query service does not know of it, and one that was just started has heard nobody; then there is no row.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from schemas.codes import Refusal
from schemas.queries import QUERY_ROWS_MAX, Query
from services.client.client import PAGES_MAX, Client


class Silence(Struct, frozen=True):
    """`silent_ms` ago the worker of the node `id`, in this generation, was last heard."""

    id: str
    generation: str
    silent_ms: int


async def silences(client: Client) -> dict[str, Silence]:
    """By node; whatever cannot be had is left out."""
    found: dict[str, Silence] = {}
    after: str | None = None
    for _ in range(PAGES_MAX):
        try:
            reply = await client.query("silence", Query(after=after, limit=QUERY_ROWS_MAX))
        except Refusal:
            break
        found |= {row.id: row for row in msgspec.convert(reply.rows, list[Silence])}
        if not reply.more or not reply.rows:
            break
        after = str(reply.rows[-1]["id"])
    return found
