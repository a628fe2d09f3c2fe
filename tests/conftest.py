"""Fixtures that every test may use."""

from __future__ import annotations

from tests.servers import (
    nats_operator_url,
    nats_server,
    nats_store,
    nats_url,
    postgres_dsn,
    postgres_server,
)

__all__ = [
    "nats_operator_url",
    "nats_server",
    "nats_store",
    "nats_url",
    "postgres_dsn",
    "postgres_server",
]
