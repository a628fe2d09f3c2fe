"""RuntimeProfile: the immutable settings a model runs under, named by their digest.

The digest goes into all evidence, so two results are comparable only where it is equal. A field that
changes meaning changes the digest; there is no default outside this struct.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.canonical import digest_of
from schemas.tokens import DurationMs

Adapter = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{1,40}$", description="Registered adapter name.")]
Task = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{1,40}$", description="Capability, such as `embedding`.")]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on one request and on each stage. Items and characters are per invocation."""

    items_max: Annotated[int, Meta(ge=1, le=4_096)] = 256
    characters_max: Annotated[int, Meta(ge=1, le=4_000_000)] = 1_000_000
    batch_max: Annotated[int, Meta(ge=1, le=1_024)] = 32
    queue_max: Annotated[int, Meta(ge=1, le=10_000)] = 256
    load_ms: DurationMs = 120_000
    health_ms: DurationMs = 15_000
    invoke_ms: DurationMs = 30_000
    drain_ms: DurationMs = 30_000
    unload_ms: DurationMs = 30_000


class RuntimeProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """What an adapter needs to give the same answer everywhere.

    `max_length` counts tokens, None takes the model's own. `pooling` None takes what the model's files
    say. `prompts` maps a prompt name to the text put before each input.
    """

    adapter: Adapter
    task: Task
    device: Literal["cpu", "cuda"] = "cpu"
    device_index: Annotated[int, Meta(ge=0, le=63)] = 0
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    threads: Annotated[int, Meta(ge=1, le=256)] = 2
    max_length: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    truncate: bool = True
    pooling: Literal["mean", "cls", "max"] | None = None
    normalize: bool = True
    prompts: dict[str, str] = {}
    require_offline_proof: bool = True
    limits: Limits = Limits()


def profile_digest(profile: RuntimeProfile) -> str:
    """The RuntimeProfile id (SHA-256, hex)."""
    return digest_of(profile)
