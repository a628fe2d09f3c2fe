"""The outcome of a command, and the receipt that repeats it.

`position` is the log position of the command's last event: pass it to a query as `min_position` to read
your own write. A rejection changes nothing and has the log's position at that time, or none.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from schemas.codes import Code


class Reply(Struct, frozen=True, omit_defaults=True):
    """`repeated` is True where this is the stored outcome of an earlier sending of the same command_id.

    `result` depends on the command: ids of what was made, or a WorkOrder for a claim. A secret in it is
    told once; a repeated reply leaves it out.
    """

    outcome: Literal["accepted", "rejected"]
    command_id: str
    position: int | None = None
    code: Code | None = None
    message: str = ""
    advice: str = ""
    detail: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    repeated: bool = False
