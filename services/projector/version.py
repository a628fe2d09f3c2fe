"""What the rows of `view.*` are made by: their definition, and the code that folds and writes them.

Rows hold what structs say and how they are folded, so another release can make other rows of the same events, with the
same columns. The digest is over the table definitions and the source of the packages that have a part in it; where it
differs, the tables are rebuilt from the log. A rebuild more than needed costs a replay, one too few leaves rows that no
release would make.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from pathlib import Path

from projections.tables import schema_digest

PACKAGES = ("schemas", "domain", "projections")


@functools.cache
def rows_digest() -> str:
    """SHA-256 (hex) of all that decides what the rows are. Reads some hundred small files once."""
    total = hashlib.sha256(schema_digest().encode())
    for package in PACKAGES:
        root = Path(str(importlib.import_module(package).__path__[0]))
        for path in sorted(root.rglob("*.py")):
            total.update(f"\0{package}/{path.relative_to(root).as_posix()}\0".encode())
            total.update(path.read_bytes())
    return total.hexdigest()
