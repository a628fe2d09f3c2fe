"""The `view.*` tables: their definition and the statement that writes them, generated from the row structs.

Rows and the tracked position go in with one statement, and the rows only if the position was still the
expected one; so each event is projected exactly once, by whichever projector gets there.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Sequence

import msgspec

from projections.rows import TABLES, Row
from schemas.canonical import digest_of

SCHEMA = "view"
PROJECTION = "main"
# NUL as JSON writes it, after an even number of backslashes: after an odd one the last escapes the next.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_encode = msgspec.json.Encoder().encode
_SQL_TYPES: dict[object, str] = {str: "text", int: "bigint", bool: "boolean"}
INDEXES = {
    "work": ("stage", "node_id", "deployment_id", "kind"),
    "deployment": ("name",),
    "residency": ("deployment_id",),
    "candidate": ("probe_id",),
}


def _column(hint: object) -> str:
    """`text`, `bigint`, `boolean` or `jsonb`, with NOT NULL unless the field may be None."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [option for option in options if option is not type(None)]
    sql = _SQL_TYPES.get(kinds[0], "jsonb")
    return sql if len(kinds) < len(options) else f"{sql} NOT NULL"


def _columns(struct: type[Row]) -> dict[str, str]:
    hints = typing.get_type_hints(struct)
    return {name: _column(hints[name]) for name in struct.__struct_fields__}


def ddl() -> list[str]:
    """Statements that make the schema from nothing."""
    statements = [
        f"CREATE SCHEMA {SCHEMA}",
        f"CREATE TABLE {SCHEMA}.tracking (name text PRIMARY KEY, position bigint NOT NULL, "
        "schema_digest text NOT NULL, updated_at timestamptz NOT NULL DEFAULT now())",
    ]
    for table, struct in TABLES.items():
        columns = ", ".join(f"{name} {sql}" for name, sql in _columns(struct).items())
        statements.append(f"CREATE TABLE {SCHEMA}.{table} ({columns}, PRIMARY KEY (id))")
        statements += [
            f"CREATE INDEX {table}_{column} ON {SCHEMA}.{table} ({column})" for column in INDEXES.get(table, ())
        ]
    return statements


def schema_digest() -> str:
    """Changes whenever a table does."""
    return digest_of(ddl())


def as_json(rows: Sequence[Row]) -> str:
    """The rows as the JSON array that `upsert` takes.

    PostgreSQL's text holds every character but NUL, and a model or a person may write one: it is shown as U+FFFD, the
    replacement character. The log has it as it was. Left alone it would stop the projection at that event for good.
    """
    text = _encode(rows).decode()
    return _NUL.sub(r"\1\\ufffd", text) if "\\u0000" in text else text


def upsert(tables: Sequence[str]) -> str:
    """The statement for one batch. Parameters: new position, projection, expected position, then per table
    (in the order given) the JSON array of its rows. Gives one row if the position moved, else none."""
    parts = [
        f"moved AS (UPDATE {SCHEMA}.tracking SET position = %s, updated_at = now() "  # noqa: S608 - our own names
        "WHERE name = %s AND position = %s RETURNING position)"
    ]
    for table in tables:
        names = list(_columns(TABLES[table]))
        updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in names if name != "id")
        parts.append(
            f"w_{table} AS (INSERT INTO {SCHEMA}.{table} ({', '.join(names)}) "  # noqa: S608
            f"SELECT {', '.join('r.' + name for name in names)} "
            f"FROM json_populate_recordset(NULL::{SCHEMA}.{table}, %s::json) r, moved "
            f"ON CONFLICT (id) DO UPDATE SET {updates})"
        )
    return f"WITH {', '.join(parts)} SELECT position FROM moved"  # noqa: S608
