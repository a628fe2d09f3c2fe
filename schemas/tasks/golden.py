"""Golden probes: inputs with expected results that a profile carries, and how near a model must come to them.

A probe and a load ask the model each of them; one that misses fails the work with GOLDEN_MISSED. What is compared:

| result       | distance                                                                      |
|--------------|-------------------------------------------------------------------------------|
| vectors      | the largest absolute difference of any element                                |
| scores       | the largest absolute difference                                               |
| texts        | 1 - the share of matching characters (Python's difflib ratio); 0 where equal  |
| audio        | the largest absolute difference of any sample; 1 where the lengths differ     |
| images       | the largest absolute difference of any channel, as a share of 255             |

Counts of rows, tokens and dimensions must be equal. `tolerance` is the largest distance that passes.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from schemas.tasks.requests import Request, Result
from schemas.tokens import Name

GOLDENS_MAX = 16
GOLDEN_BYTES_MAX = 200_000  # of a profile, as canonical JSON: a work order holds them beside a list of files


class GoldenProbe(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    request: Request
    expected: Result
    tolerance: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0


class GoldenSeen(Struct, frozen=True, forbid_unknown_fields=True):
    """How one golden probe went. `distance` is None where there was no result to compare; `detail` says why."""

    name: str
    passed: bool
    distance: float | None = None
    tolerance: float = 0.0
    detail: str = ""
