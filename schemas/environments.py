"""RuntimeEnvironment: what a worker runs on, named by its fingerprint.

The fingerprint is part of every probe's evidence; a deployment is bound to it. It holds what can change
a result (interpreter, libraries, device, driver) and leaves out what cannot (host name, addresses).
"""

from __future__ import annotations

from msgspec import Struct

from schemas.canonical import digest_of
from schemas.tokens import ByteCount


class Device(Struct, frozen=True, forbid_unknown_fields=True):
    """One device a model can run on. `index` is the driver's; `memory_bytes` is None where unknown."""

    kind: str  # "cpu" | "cuda"
    index: int
    name: str
    memory_bytes: ByteCount | None = None


class RuntimeEnvironment(Struct, frozen=True, forbid_unknown_fields=True):
    """Versions and devices. `packages` maps a distribution to its version, `adapters` an adapter to its own."""

    python: str
    platform: str
    worker: str
    packages: dict[str, str]
    adapters: dict[str, str]
    devices: list[Device]
    driver: str | None = None


def fingerprint(environment: RuntimeEnvironment) -> str:
    """The digest that names this environment (SHA-256, hex)."""
    return digest_of(environment)
