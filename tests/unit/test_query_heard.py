"""How long each node has been silent, as the query service remembers it."""

from __future__ import annotations

import pytest

from schemas.live import Beat
from schemas.queries import Query
from services.query import heard as module
from services.query.heard import Heard


class Desk:
    def __init__(self) -> None:
        self.at_s = 100.0
        self.heard = Heard(lambda: self.at_s)

    def beat(self, node_id: str, generation: str = "1") -> None:
        self.heard.note(Beat(node_id, generation, "boot", "a" * 64, []))

    def rows(self, query: Query | None = None) -> list[dict[str, object]]:
        return self.heard.answer(query or Query()).rows


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_silence_counts_from_the_newest_heartbeat(desk: Desk) -> None:
    assert desk.rows() == []
    desk.beat("n2")
    desk.at_s += 1.5
    desk.beat("n1")
    desk.at_s += 0.25
    assert desk.rows() == [
        {"id": "n1", "generation": "1", "silent_ms": 250},
        {"id": "n2", "generation": "1", "silent_ms": 1_750},
    ]
    desk.beat("n2")
    assert desk.rows(Query(id="n2")) == [{"id": "n2", "generation": "1", "silent_ms": 0}]


def test_an_older_generation_is_not_the_owner(desk: Desk) -> None:
    desk.beat("n1", "10")
    desk.at_s += 1
    desk.beat("n1", "9")
    assert desk.rows() == [{"id": "n1", "generation": "10", "silent_ms": 1_000}]
    desk.beat("n1", "11")
    assert desk.rows() == [{"id": "n1", "generation": "11", "silent_ms": 0}]


def test_rows_come_in_pages(desk: Desk) -> None:
    for name in ("c", "a", "b"):
        desk.beat(name)
    first = desk.heard.answer(Query(limit=2))
    assert ([row["id"] for row in first.rows], first.more) == (["a", "b"], True)
    assert [row["id"] for row in desk.rows(Query(after="b"))] == ["c"]


def test_the_node_heard_longest_ago_is_forgotten(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NODES_MAX", 2)
    for name in ("a", "b", "a", "c"):
        desk.beat(name)
    assert [row["id"] for row in desk.rows()] == ["a", "c"]
