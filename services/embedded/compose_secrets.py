"""Make the secrets that compose.yaml mounts: `python -m services.embedded.compose_secrets secrets [NODE ...]`.

For each node named (TENURE_NODE_ID or `local` where none is) a credential and a login on NATS. The passwords of all
NATS users, those of earlier runs included, go into `nats_users` together with what each may do: a file for
nats-server's configuration to include, in compose or in a deployment of your own. A server that runs takes a new one
up on SIGHUP.

Secrets are made once; a file that exists is kept. Only `nats_users` follows from the others and is written anew, in
place, because a container sees the file that was there when it started. The folder has mode 0700, which is what guards
it on this machine. The files have mode 0444, because compose mounts them as they are and each container runs as a user
of its own.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from schemas.tokens import is_token
from services.cli.exits import OK, USAGE
from services.embedded.credentials import SECRET_BYTES
from services.embedded.nats_conf import NODE_PREFIX, USERS, node_user, render_users

NATS_USERS = "nats_users"


def credential_name(node_id: str) -> str:
    return f"node_{node_id}_credential"


def password_name(user: str) -> str:
    """The file with the password of a NATS user."""
    return f"nats_{user.replace(NODE_PREFIX, 'node_', 1)}_password"


def make(folder: Path, node_ids: Sequence[str]) -> list[str]:
    """Make what is missing; the names of what was made, or written anew."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made: list[str] = []

    def ensure(name: str, text: str) -> str:
        path = folder / name
        if not path.exists():
            _write(path, text)
            made.append(name)
        return path.read_text()

    password = ensure("postgres_password", _fresh())
    ensure("postgres_dsn", f"postgresql://tenure:{password}@postgres:5432/tenure")
    for user in (*USERS, *map(node_user, node_ids)):
        ensure(password_name(user), _fresh())
    for node_id in node_ids:
        ensure(credential_name(node_id), _fresh())
    passwords = {user: (folder / password_name(user)).read_text().strip() for user in (*USERS, *_nodes(folder))}
    users = render_users(passwords)
    known = folder / NATS_USERS
    if not known.exists() or known.read_text() != users:
        _write(known, users)
        made.append(NATS_USERS)
    return made


def _nodes(folder: Path) -> list[str]:
    """The users of all nodes that have a password in the folder."""
    before, _, after = password_name(node_user("*")).partition("*")
    names = sorted(path.name.removeprefix(before).removesuffix(after) for path in folder.glob(f"{before}*{after}"))
    return [node_user(name) for name in names if is_token(name)]


def _fresh() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def _write(path: Path, text: str) -> None:
    """Write a file, in place where it exists, and leave it readable, whatever the umask."""
    if path.exists():
        path.chmod(0o644)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o444)


def main(arguments: Sequence[str]) -> int:
    folder, *node_ids = arguments or ["secrets"]
    node_ids = node_ids or [os.environ.get("TENURE_NODE_ID") or "local"]
    wrong = [node_id for node_id in node_ids if not is_token(node_id)]
    if wrong:
        sys.stderr.write(f"no id of a node: {', '.join(wrong)}\n")
        return USAGE
    for each in make(Path(folder), node_ids):
        sys.stderr.write(f"made {each}\n")
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
