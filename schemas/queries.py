"""Queries: read the projected tables, saying how fresh they are.

On `tenure.query.v1.<table>`. With `min_position` the answer waits (bounded by `wait_ms`) until the
projection has reached it, and is refused with UNAVAILABLE if it does not.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from schemas.codes import Code

QUERY_ROWS_MAX = 500
QUERY_WAIT_MS_MAX = 30_000


class Query(Struct, frozen=True, forbid_unknown_fields=True):
    """`id`, or an unambiguous prefix of it of at least 4 characters, selects one row.

    `where` compares columns for equality; rows come in the order of their id, after `after`.
    """

    id: str | None = None
    where: dict[str, str] = field(default_factory=dict)
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=QUERY_ROWS_MAX)] = 100
    min_position: int | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=QUERY_WAIT_MS_MAX)] = 5_000


class QueryReply(Struct, frozen=True, omit_defaults=True):
    """`position` is how far the projection has read; `age_ms` how long ago it last made sure it was current."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    position: int = 0
    age_ms: int = 0
    more: bool = False
    code: Code | None = None
    message: str = ""
    advice: str = ""
