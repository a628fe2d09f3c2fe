"""The login on the bus of a node's worker, where `tenure up` runs on this machine.

The plane keeps its logins as files in `<data_dir>/secrets` (see `nats`). `ensure` puts the node's there, if it has
none, and returns once the server lets it in. A plane that uses somebody else's NATS has no such files, and gets none:
its users are that server's own matter.

The command line uses this too, so nothing here needs the packages of the embedded servers.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from nats.aio.client import Client
from nats.errors import Error as NatsError

from schemas.codes import Code, Refusal
from schemas.tokens import is_token
from services.embedded.credentials import ensure_secret
from services.embedded.nats_conf import OPERATOR, node_user
from services.settings import ENDPOINTS_FILE, Settings

PASSWORD_FILES = ("nats-", ".password")  # what is around the user's name
LOGIN_TIMEOUT_S = 10.0  # from a new password file to a login that works
CONNECT_TIMEOUT_S = 2
RETRY_S = 0.02


class NodeLogin(NamedTuple):
    user: str
    password_file: Path


def password_file(data_dir: Path, user: str) -> Path:
    """Where the password of a NATS user lies."""
    return data_dir / "secrets" / user.join(PASSWORD_FILES)


async def ensure(settings: Settings, node_id: str) -> NodeLogin | None:
    """The node's login; None where no plane with a NATS of its own runs on this data folder."""
    if not is_token(node_id):
        raise Refusal(Code.COMMAND_MALFORMED, f"{node_id!r} is no id of a node")
    data_dir = settings.data_dir.resolve()
    own = (data_dir / ENDPOINTS_FILE).exists() and password_file(data_dir, OPERATOR).exists()
    address = settings.resolved().nats_url
    if not own or address is None or settings.nats_url is not None:
        return None
    user = node_user(node_id)
    file = password_file(data_dir, user)
    password = ensure_secret(file)
    scheme, _, host = address.partition("://")
    await logs_in(f"{scheme}://{user}:{quote(password, safe='')}@{host}")
    return NodeLogin(user, file)


async def logs_in(url: str, timeout_s: float = LOGIN_TIMEOUT_S) -> None:
    """Wait until the server lets this login in, at most this long."""
    deadline = time.monotonic() + timeout_s
    while True:
        client = Client()
        try:
            await client.connect(url, allow_reconnect=False, connect_timeout=CONNECT_TIMEOUT_S, error_cb=_ignore)
        except (OSError, NatsError) as error:
            if time.monotonic() >= deadline:
                raise Refusal(Code.UNAVAILABLE, f"nats-server does not take the new login: {error!r}") from error
        else:
            return
        finally:
            await client.close()  # also after a failed login: the client leaves its socket open
        await asyncio.sleep(RETRY_S)


async def _ignore(_error: Exception) -> None:
    """The client's error callback: `logs_in` sees the same error as an exception."""
