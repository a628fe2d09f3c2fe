"""The worker's settings, from `TENURE_*` environment variables.

`data_dir` holds what the worker writes (under `worker/<node id>/`), `artifact_root` what it only reads. The
credential is a secret in a file, so that it shows in no process list and no environment dump.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from schemas.tokens import is_token

BEAT_MS_DEFAULT = 1_000
CREDENTIAL_CHARACTERS = range(16, 257)


class WorkerSettings(Struct, frozen=True, kw_only=True):
    nats_url: str
    node_id: str
    credential: str
    artifact_root: Path
    data_dir: Path
    nats_user: str | None = None
    nats_password: str | None = None
    beat_ms: int = BEAT_MS_DEFAULT
    fork_server: bool = True
    log_level: str = "info"
    log_json: bool = False

    @property
    def state(self) -> Path:
        """What this node's worker writes: records of its children, their scratch folders."""
        return self.data_dir / "worker" / self.node_id


class SettingsError(Exception):
    """A variable is missing or wrong; the message names it."""


def read_settings(environ: Mapping[str, str] = os.environ) -> WorkerSettings:
    node_id = _needed(environ, "TENURE_NODE_ID")
    if not is_token(node_id):
        raise SettingsError(f"TENURE_NODE_ID `{node_id}` must be 1 to 64 letters, digits, `_` or `-`")
    root = Path(_needed(environ, "TENURE_ARTIFACT_ROOT"))
    if not root.is_dir():
        raise SettingsError(f"TENURE_ARTIFACT_ROOT `{root}` is no folder")
    return WorkerSettings(
        nats_url=_needed(environ, "TENURE_NATS_URL"),
        nats_user=environ.get("TENURE_NATS_USER") or None,
        nats_password=environ.get("TENURE_NATS_PASSWORD") or None,
        node_id=node_id,
        credential=_credential(Path(_needed(environ, "TENURE_CREDENTIAL_FILE"))),
        artifact_root=root.resolve(),
        data_dir=Path(_needed(environ, "TENURE_DATA_DIR")).resolve(),
        beat_ms=_number(environ, "TENURE_BEAT_MS", BEAT_MS_DEFAULT, range(100, 60_001)),
        fork_server=_switch(environ, "TENURE_WORKER_FORK_SERVER", "on"),
        log_level=environ.get("TENURE_LOG_LEVEL", "info").lower(),
        log_json=environ.get("TENURE_LOG_JSON", "").lower() in {"1", "true", "yes"},
    )


def _needed(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise SettingsError(f"{name} is not set")
    return value


def _number(environ: Mapping[str, str], name: str, default: int, allowed: range) -> int:
    raw = environ.get(name) or str(default)
    if not raw.isdecimal() or int(raw) not in allowed:
        raise SettingsError(f"{name} is `{raw}`; a whole number from {allowed.start} to {allowed.stop - 1} is needed")
    return int(raw)


def _switch(environ: Mapping[str, str], name: str, default: str) -> bool:
    raw = environ.get(name) or default
    if raw not in {"on", "off"}:
        raise SettingsError(f"{name} is `{raw}`; `on` or `off` is needed")
    return raw == "on"


def _credential(path: Path) -> str:
    try:
        secret = path.read_text().strip()
    except OSError as error:
        raise SettingsError(f"TENURE_CREDENTIAL_FILE `{path}` can't be read: {error.strerror}") from error
    if len(secret) not in CREDENTIAL_CHARACTERS:
        raise SettingsError(f"TENURE_CREDENTIAL_FILE `{path}` holds {len(secret)} characters; 16 to 256 are needed")
    return secret
