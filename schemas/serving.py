"""Invocations: MessagePack on `tenure.serve.v1.<node>.<generation>.<deployment>`.

Vectors travel as raw little-endian float32, row after row. An answer is either a result or a `Failure`
with a code; a partial result is never returned.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from schemas.codes import Code


class EmbedRequest(Struct, frozen=True, tag="embed", forbid_unknown_fields=True):
    """`texts` in order; `prompt_name` is one of the profile's prompts. `deadline_ms` from receipt."""

    texts: list[str]
    prompt_name: str | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=600_000)] | None = None


class EmbedResult(Struct, frozen=True, tag="embedded", forbid_unknown_fields=True):
    """`vectors` holds `rows * dimensions` float32. `truncated[i]` is True where text i was longer than the limit.

    `tokens[i]` counts the tokens of text i before truncation. `model` names what answered:
    artifact and profile digests and the worker generation.
    """

    vectors: bytes
    rows: int
    dimensions: int
    tokens: list[int]
    truncated: list[bool]
    artifact_id: str
    profile_id: str
    generation: str
    compute_ms: float


class Failure(Struct, frozen=True, tag="failure", forbid_unknown_fields=True):
    code: Code
    message: str
    advice: str = ""


ServeRequest = EmbedRequest
ServeAnswer = EmbedResult | Failure
