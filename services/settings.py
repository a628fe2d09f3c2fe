"""Settings of every process, from `TENURE_*` environment variables.

Where no Postgres DSN or NATS URL is given, the embedded servers under `data_dir` are meant: `tenure up`
starts them and writes their addresses to `data_dir/run/endpoints.json`, which other commands read.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.tokens import is_token

DEVICE_RESERVE_BYTES_DEFAULT = 512 * 1024 * 1024
ENDPOINTS_FILE = Path("run") / "endpoints.json"


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "tenure"


class Settings(BaseSettings):
    """Durations in milliseconds. `session_ms` is the term of a worker session, `lease_ms` of a work lease,
    `leader_ms` of the active control plane. `device_reserve_bytes` is what admission leaves free on every device of
    every node (the driver's context and what a model takes beyond its probe). `instance` names a control plane:
    give each of several another one.
    """

    model_config = SettingsConfigDict(env_prefix="TENURE_", extra="ignore")

    data_dir: Path = Field(default_factory=_default_data_dir)
    postgres_dsn: str | None = None
    nats_url: str | None = None
    nats_user: str | None = None
    nats_password: str | None = None
    node_id: str = "local"
    credential_file: Path | None = None
    artifact_root: Path | None = None
    lease_ms: int = Field(default=30_000, ge=1_000, le=3_600_000)
    session_ms: int = Field(default=10_000, ge=1_000, le=600_000)
    leader_ms: int = Field(default=4_000, ge=500, le=60_000)
    instance: str = Field(default_factory=socket.gethostname)
    beat_ms: int = Field(default=1_000, ge=100, le=60_000)
    device_reserve_bytes: int = Field(default=DEVICE_RESERVE_BYTES_DEFAULT, ge=0, le=2**53 - 1)
    log_level: str = "info"
    log_json: bool = False

    @field_validator("node_id")
    @classmethod
    def _node_id_is_a_token(cls, node_id: str) -> str:
        if not is_token(node_id):
            raise ValueError("a node's id is 1 to 64 letters, digits, `_` or `-`, and begins with no `-`")
        return node_id

    def resolved(self) -> Settings:
        """These settings with the addresses of the embedded servers filled in where none were given."""
        path = self.data_dir / ENDPOINTS_FILE
        if (self.postgres_dsn and self.nats_url) or not path.exists():
            return self
        known = json.loads(path.read_text())
        return self.model_copy(
            update={
                "postgres_dsn": self.postgres_dsn or known.get("postgres_dsn"),
                "nats_url": self.nats_url or known.get("nats_url"),
                "artifact_root": self.artifact_root or Path(known["artifact_root"]),
            }
        )

    @property
    def artifacts(self) -> Path:
        return self.artifact_root or self.data_dir / "artifacts"
