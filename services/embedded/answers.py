"""Does a service answer on the bus? `python -m services.embedded.answers tenure-control`, for container health checks.

It logs in with the settings' NATS login and asks `$SRV.PING.<name>`; exit code 0 if anybody of that name answers
within `TIMEOUT_S`. Without a name it only logs in: what a worker's container can check, whose life is the control
plane's to judge.
"""

from __future__ import annotations

import asyncio
import sys

from nats.aio.client import Client
from nats.errors import Error as NatsError

from services.settings import Settings

TIMEOUT_S = 4


async def answers(settings: Settings, name: str | None) -> bool:
    async def quiet(_error: Exception) -> None:
        """The exception says it."""

    client = Client()
    try:
        await client.connect(
            settings.nats_url or "",
            user=settings.nats_user,
            password=settings.nats_password,
            allow_reconnect=False,
            connect_timeout=TIMEOUT_S,
            error_cb=quiet,
        )
        if name is not None:
            await client.request(f"$SRV.PING.{name}", b"", timeout=TIMEOUT_S)
    except (OSError, NatsError):
        return False
    finally:
        await client.close()
    return True


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(answers(Settings(), sys.argv[1] if len(sys.argv) > 1 else None)) else 1)
