"""What differs from story to story besides its faults: terms, the node's device, and the persons' habits."""

from __future__ import annotations

import random
from typing import NamedTuple

from services.control.serve import Terms

LEASE_MS, SESSION_MS, BEAT_MS, LEADER_MS = 6_000, 4_000, 500, 2_000
QUEUE_MS = (6_000, 60_000)  # the first is passed by work whose worker is away


class Scenario(NamedTuple):
    queue_ms: int
    cancels: bool  # whether somebody watches work and cancels it at each stage

    @property
    def terms(self) -> Terms:
        return Terms(LEASE_MS, SESSION_MS, BEAT_MS, self.queue_ms, LEADER_MS)


def draw_scenario(seed: int) -> Scenario:
    rng = random.Random(f"scenario {seed}")
    return Scenario(queue_ms=rng.choice(QUEUE_MS), cancels=rng.random() < 0.4)
