"""Bring a database to this version's tables: `python -m services.eventlog.migrate`.

Safe to run again and from several places at once (an advisory lock serialises it). The log is only ever
added to. The `view.*` tables are the projector's and can be rebuilt from the log at will.
"""

from __future__ import annotations

import sys
from importlib.resources import files

import psycopg

from services.database.options import with_bounds
from services.eventlog.postgres import SCHEMA, TenureRecorder
from services.settings import Settings

MIGRATION_LOCK = 7_368_123_001  # arbitrary, ours


def migrate(dsn: str) -> None:
    """Create what is missing. Raises psycopg.Error where the database cannot be reached or refuses."""
    with psycopg.connect(with_bounds(dsn), autocommit=True) as conn:
        conn.execute("SELECT pg_advisory_lock(%s)", (MIGRATION_LOCK,))
        conn.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        TenureRecorder(conn).create_table()
        conn.execute(files("services.eventlog").joinpath("schema.sql").read_text().encode())


def main() -> int:
    dsn = Settings().resolved().postgres_dsn
    if dsn is None:
        sys.stderr.write("TENURE_POSTGRES_DSN is not set and no embedded server is running\n")
        return 4
    migrate(dsn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
