"""A DSN is given bounds where it has none, and keeps all that it says."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from services.database.options import BOUNDS, with_bounds


@pytest.mark.parametrize(
    "dsn", ["postgresql://me:se%20cret@db.internal:5433/tenure?sslmode=require", "host=/run/pg dbname='my db' user=me"]
)
def test_bounds_are_added_and_nothing_is_lost(dsn: str) -> None:
    assert conninfo_to_dict(with_bounds(dsn)) == {**conninfo_to_dict(dsn), **BOUNDS}


@pytest.mark.parametrize("name", BOUNDS)
def test_what_a_dsn_says_wins(name: str) -> None:
    for dsn in (f"host=h {name}=77", f"postgresql://h/d?{name}=77"):
        assert conninfo_to_dict(with_bounds(dsn))[name] == "77"


def test_what_is_no_dsn_is_said_to_be_none() -> None:
    with pytest.raises(psycopg.ProgrammingError):
        with_bounds("no dsn")
