"""The statements made from the row structs: right columns, one upsert per batch, a digest that tells versions apart."""

from __future__ import annotations

import subprocess
import sys

import pytest

from projections import tables
from projections.rows import TABLES
from projections.tables import ddl, schema_digest, upsert


def statement_for(table: str) -> str:
    return next(text for text in ddl() if text.startswith(f"CREATE TABLE view.{table} "))


def test_each_struct_is_a_table_with_its_columns() -> None:
    for table, struct in TABLES.items():
        text = statement_for(table)
        assert text.endswith("PRIMARY KEY (id))")
        for name in struct.__struct_fields__:
            assert f" {name} " in text.replace("(", " ", 1)
    assert ddl()[0] == "CREATE SCHEMA view"
    assert "position bigint NOT NULL" in ddl()[1]


@pytest.mark.parametrize(
    ("table", "column"),
    [("node", "enabled boolean NOT NULL"), ("node", "boot_id text,"), ("node", "environment jsonb NOT NULL"),
     ("work", "lease_until_ms bigint,"), ("work", "deadline_ms bigint NOT NULL"),
     ("deployment", "node_ids jsonb NOT NULL"), ("candidate", "approved_at_ms bigint,")],
)  # fmt: skip
def test_types_and_nulls_follow_the_hints(table: str, column: str) -> None:
    assert column in statement_for(table)


def test_indexes_are_on_columns_that_there_are() -> None:
    for table, columns in tables.INDEXES.items():
        for column in columns:
            assert column in TABLES[table].__struct_fields__
            assert f"CREATE INDEX {table}_{column} ON view.{table} ({column})" in ddl()


def test_an_upsert_moves_the_position_and_writes_rows_only_then() -> None:
    text = upsert(["node", "work"])
    assert text.count("%s") == 3 + 2
    assert text.index("WHERE name = %s AND position = %s") < text.index("INSERT INTO view.node")
    for table in ("node", "work"):
        assert f"FROM json_populate_recordset(NULL::view.{table}, %s::json) r, moved ON CONFLICT (id)" in text
    assert " id = EXCLUDED.id" not in text
    assert "enabled = EXCLUDED.enabled" in text
    assert text.endswith("SELECT position FROM moved")
    assert upsert([]).count("%s") == 3  # a batch without rows still moves the position


def test_the_digest_is_the_same_in_every_process_and_changes_with_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    first = schema_digest()
    code = "from projections.tables import schema_digest; print(schema_digest())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == first
    monkeypatch.setitem(tables.INDEXES, "artifact", ("name",))
    assert schema_digest() != first
