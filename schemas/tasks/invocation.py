"""What every invocation may say besides its input, and what several tasks share.

`deadline_ms` counts from the worker's receipt and is never longer than the profile's `invoke_ms`. An invocation
that should be cancellable names itself with `invocation_id`; the id must be new among those under way.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from schemas.tokens import Token

INVOKE_MS_MAX = 600_000
DeadlineMs = Annotated[int, Meta(ge=1, le=INVOKE_MS_MAX, description="Milliseconds from the worker's receipt.")]
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1, description="Start of the random numbers of one invocation.")]
# What was done to an input before the model saw it, in words, such as `RGBA to RGB over white`.
Conversions = list[str]


class Invocation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part that all requests share."""

    deadline_ms: DeadlineMs | None = None
    invocation_id: Token | None = None
