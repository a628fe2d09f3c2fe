"""Enrol this machine's node by the credential it has: `python -m services.embedded.enrol`.

For deployments that bring a node up with the control plane (`tenure up`, compose.yaml). The control plane gets the
SHA-256 of what is in TENURE_CREDENTIAL_FILE, never the secret. A node that is enrolled with the same credential
already is accepted; with another one, it is refused. A control plane that does not answer yet is asked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time

from schemas.codes import Code, Refusal
from services.cli.exits import OK, USAGE, exit_code
from services.client import Client
from services.settings import Settings

ANSWERS_S = 120.0
RETRY_S = 0.5
ACTOR = "tenure-enrol"


async def enrol(settings: Settings, credential: str) -> None:
    """Ask once. Raises a Refusal: UNAVAILABLE where nobody answers, NAME_TAKEN for another credential."""
    digest = hashlib.sha256(credential.encode()).hexdigest()
    client = await Client.connect(settings, ACTOR)
    try:
        await client.accepted("node.enrol", node_id=settings.node_id, credential_sha256=digest)
    finally:
        await client.close()


async def enrol_within(settings: Settings, credential: str, timeout_s: float = ANSWERS_S) -> None:
    """Ask until the control plane answers, at most this long."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return await enrol(settings, credential)
        except Refusal as refusal:
            if refusal.code is not Code.UNAVAILABLE or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(RETRY_S)


def main() -> int:
    settings = Settings()
    if settings.credential_file is None:
        sys.stderr.write("TENURE_CREDENTIAL_FILE is not set\n")
        return USAGE
    try:
        asyncio.run(enrol_within(settings, settings.credential_file.read_text().strip()))
    except Refusal as refusal:
        sys.stderr.write(f"{refusal}\n")
        return exit_code(refusal.code)
    sys.stderr.write(f"node {settings.node_id} is enrolled\n")
    return OK


if __name__ == "__main__":
    sys.exit(main())
