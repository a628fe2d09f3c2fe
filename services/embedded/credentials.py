"""Secrets that are made once and kept: random, in files that only their owner reads.

Nothing here is derived from anything else, printed or logged. A file that exists is used as it is, so an operator
may put their own in place before the first start.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

SECRET_BYTES = 32


def secret_dir(path: Path) -> Path:
    """The folder, made with mode 0700 if it is missing."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def ensure_secret(path: Path) -> str:
    """The secret in this file; a new one (`SECRET_BYTES` random bytes, URL-safe) where there is none yet."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(SECRET_BYTES))
    return path.read_text().strip()


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600, whole or not at all, and on the disk when this returns."""
    secret_dir(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
