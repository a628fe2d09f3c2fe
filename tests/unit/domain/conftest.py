"""The `story` fixture. However a story goes, its log must fold to its world and pass the auditor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.domain.invariants import check
from tests.unit.domain.story import Story, audited


@pytest.fixture
def story() -> Iterator[Story]:
    made = Story()
    yield made
    check(made)
    auditor = audited(made.lines)
    assert auditor.violations == []
    assert auditor.stale == []
