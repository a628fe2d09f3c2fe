"""What deciding yields: events to append, or a refusal. Both are values."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from schemas.codes import Code
from schemas.events import Event


class Recorded(Struct, frozen=True, gc=False):
    """One event and the stream it belongs to."""

    stream: str
    event: Event


class Accepted(Struct, frozen=True, gc=False):
    """`events` may be empty: the command asked for what already holds.

    `result` is kept in the receipt; `secret` is added to the first reply only and stored nowhere.
    """

    events: list[Recorded] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    secret: dict[str, Any] = field(default_factory=dict)


class Rejected(Struct, frozen=True, gc=False):
    """Nothing changed. `message` says what was wrong with these values; the code's advice says what to do."""

    code: Code
    message: str
    detail: dict[str, str] = field(default_factory=dict)


Outcome = Accepted | Rejected
