"""Who uses the control plane from here: the actor put into commands, and the login on the bus."""

from __future__ import annotations

import getpass
import json
import os
import socket

from services.settings import ENDPOINTS_FILE, Settings

ACTOR_CHARACTERS_MAX = 128


def default_actor() -> str:
    """TENURE_ACTOR, or else the login name and the host."""
    said = os.environ.get("TENURE_ACTOR")
    if said:
        return said[:ACTOR_CHARACTERS_MAX]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no name for this user id
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:ACTOR_CHARACTERS_MAX]


def credentials(settings: Settings) -> tuple[str | None, str | None]:
    """The NATS login: what the settings say, otherwise the operator's from the embedded servers' endpoints file."""
    if settings.nats_user or settings.nats_password:
        return settings.nats_user, settings.nats_password
    path = settings.data_dir / ENDPOINTS_FILE
    if not path.exists():
        return None, None
    known = json.loads(path.read_text())
    return known.get("nats_operator_user"), known.get("nats_operator_password")
