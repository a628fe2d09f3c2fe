"""How long a connection to PostgreSQL may hear nothing from the other side: the options of libpq, with bounds.

By itself libpq waits for the kernel, and that waits long: a quarter of an hour for what was sent to be acknowledged,
and two hours before it looks whether a connection on which nothing happens still leads anywhere. A network that is cut
keeps a process waiting for that long. So every connection of ours is made with BOUNDS. What a DSN says itself wins.
"""

from __future__ import annotations

from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CONNECT_TIMEOUT_S = 2  # for each address of the server; psycopg knows nothing shorter

BOUNDS = {
    "connect_timeout": str(CONNECT_TIMEOUT_S),
    "tcp_user_timeout": "3000",  # milliseconds until what was sent must be acknowledged; also what ends a silence
    "keepalives_idle": "2",  # seconds of silence before it is looked whether the server is there
    "keepalives_interval": "1",
    "keepalives_count": "2",
}


def with_bounds(dsn: str) -> str:
    """This DSN or URI as a DSN with BOUNDS where it says nothing itself. On a Unix socket only the first has a meaning.

    Raises psycopg.ProgrammingError where it is none.
    """
    options: dict[str, Any] = {**BOUNDS, **conninfo_to_dict(dsn)}
    return make_conninfo(**options)
