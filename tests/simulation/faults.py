"""The faults of a story: drawn from its seed beforehand, so that a failing story can be told with fewer of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

QUIET_SHARE = 0.2
SERVICES = ("control", "standby", "relay", "projector", "worker")
# kind -> (targets, seconds it may last)
KINDS: dict[str, tuple[tuple[str, ...], tuple[float, float]]] = {
    "kill": (SERVICES, (0.1, 6.0)),  # and stays down that long
    "stop": (SERVICES, (0.5, 15.0)),  # SIGSTOP, then SIGCONT
    "partition": (SERVICES, (0.5, 15.0)),
    "crash at effect": (SERVICES, (5.0, 20.0)),  # killed before or after its next effects, with some probability
    "loss": (("network",), (2.0, 15.0)),
    "duplication": (("network",), (2.0, 15.0)),
    "reordering": (("network",), (2.0, 15.0)),
    "delay": (("network",), (2.0, 15.0)),
    "hints lost": (("network",), (3.0, 20.0)),  # wake-ups and offers of work; all else arrives
    "acks lost": (("network",), (3.0, 20.0)),  # of JetStream messages, which then come again
    "bus restart": (("bus",), (0.1, 5.0)),
    "bus wiped": (("bus",), (0.1, 3.0)),
    "database away": (("disk",), (0.2, 8.0)),
    "disk full": (("disk",), (0.5, 8.0)),
    "disk stalls": (("disk",), (0.5, 14.0)),  # commits wait, at times longer than JetStream waits for an ack
    "lost acks": (("disk",), (2.0, 20.0)),
    "child killed": (("host",), (0.0, 0.0)),
    "child hangs": (("host",), (2.0, 10.0)),
    "loads fail": (("host",), (2.0, 15.0)),
    "loads are slow": (("host",), (5.0, 20.0)),  # longer than a lease, or than JetStream waits for an ack
    "foreign memory": (("host",), (1.0, 20.0)),  # another process takes of the device, and gives it back
    "driver fails": (("host",), (1.0, 10.0)),  # the device cannot be measured
    "clock jump": (("clock",), (0.0, 0.0)),
    "second worker": (("worker",), (0.0, 0.0)),  # started while the first still runs
    "worker leaves": (("worker",), (0.0, 0.0)),  # stopped in good order
}


class Fault(NamedTuple):
    at_s: float
    kind: str
    target: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:6.2f} s  {self.kind} ({self.target}) for {self.lasts_s:.2f} s"


def draw(seed: int, length_s: float, only: Sequence[str] = ()) -> list[Fault]:
    """Few kinds in each story, often: what goes together differs from seed to seed. Some end in quiet times.

    `only` are the kinds to choose from, all where none is named.
    """
    rng = random.Random(seed)
    until_s = length_s / 4 if rng.random() < QUIET_SHARE else length_s
    choice = list(only or KINDS)
    kinds = rng.sample(choice, min(rng.randint(1, 5), len(choice)))
    faults = []
    for _ in range(rng.randint(2, 10)):
        kind = rng.choice(kinds)
        targets, (shortest, longest) = KINDS[kind]
        faults.append(Fault(rng.uniform(1.0, until_s), kind, rng.choice(targets), rng.uniform(shortest, longest)))
    return sorted(faults)
