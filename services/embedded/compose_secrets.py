"""Make the secrets that compose.yaml mounts: `python -m services.embedded.compose_secrets secrets`.

Made once; a file that exists is kept. The folder has mode 0700, which is what guards it on this machine. The files have
mode 0444, because compose mounts them as they are and each container runs as a user of its own.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from services.embedded.credentials import SECRET_BYTES
from services.embedded.nats_conf import USERS

NODE_CREDENTIAL = "node_credential"


def make(folder: Path) -> list[str]:
    """Make what is missing; the names of what was made."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made: list[str] = []

    def ensure(name: str, text: str) -> str:
        path = folder / name
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            path.chmod(0o444)  # whatever the umask
            made.append(name)
        return path.read_text()

    def fresh() -> str:
        return secrets.token_urlsafe(SECRET_BYTES)

    password = ensure("postgres_password", fresh())
    ensure("postgres_dsn", f"postgresql://tenure:{password}@postgres:5432/tenure")
    passwords = {user: ensure(f"nats_{user}_password", fresh()) for user in USERS}
    ensure("nats_passwords", "".join(f'{user.upper()}_PASSWORD: "{word}"\n' for user, word in passwords.items()))
    ensure(NODE_CREDENTIAL, fresh())
    return made


if __name__ == "__main__":
    for each in make(Path(sys.argv[1] if len(sys.argv) > 1 else "secrets")):
        sys.stderr.write(f"made {each}\n")
