"""What differs from story to story besides its faults: terms, the node's device and adapters, a second person."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

from services.control.serve import Terms

LEASE_MS, SESSION_MS, BEAT_MS, LEADER_MS = 6_000, 4_000, 500, 2_000
QUEUE_MS = (6_000, 60_000)  # the first is passed by work whose worker is away
DEVICE_RESERVE_BYTES = 60_000_000
DEVICE_BYTES = (250_000_000, 450_000_000, 800_000_000)  # for one model, for two, for all that there are
# Adapters that a worker of these stories may have, each with its one task; the first is always installed.
ADAPTERS = {"sentence_transformers": "embedding", "cross_encoders": "rerank"}
UNLISTED = (("no_such_adapter", "embedding"), ("sentence_transformers", "text_generation"))  # what nobody has


class Scenario(NamedTuple):
    """`missing` are the adapters whose packages are not installed; what they do is not listed."""

    queue_ms: int
    cancels: bool  # whether somebody watches work and cancels it at each stage
    missing: tuple[str, ...]
    device: Literal["cpu", "cuda"]  # what the first adapter's profile asks for; the node has one such device
    device_bytes: int
    contained: bool  # whether the worker is in a container, where the driver's pids are not its own

    @property
    def terms(self) -> Terms:
        return Terms(LEASE_MS, SESSION_MS, BEAT_MS, self.queue_ms, LEADER_MS, DEVICE_RESERVE_BYTES)

    @property
    def listed(self) -> list[tuple[str, str]]:
        return [(adapter, task) for adapter, task in ADAPTERS.items() if adapter not in self.missing]

    @property
    def unlisted(self) -> list[tuple[str, str]]:
        return [*UNLISTED, *((adapter, ADAPTERS[adapter]) for adapter in self.missing)]


def draw_scenario(seed: int) -> Scenario:
    rng = random.Random(f"scenario {seed}")
    return Scenario(
        queue_ms=rng.choice(QUEUE_MS),
        cancels=rng.random() < 0.4,
        missing=() if rng.random() < 0.25 else ("cross_encoders",),
        device="cuda" if rng.random() < 0.6 else "cpu",
        device_bytes=rng.choice(DEVICE_BYTES),
        contained=rng.random() < 0.3,
    )
