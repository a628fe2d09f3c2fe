"""6 bites: the writer's memory, the tables and EVENTS, each where it is not the fold or the copy of the log."""

from __future__ import annotations

from typing import Any

import pytest

from domain.folding.fold import fold
from domain.folding.states import State
from projections.project import Rows, project
from schemas import subjects
from schemas.events import decode_event
from tests.simulation import forged as f
from tests.simulation.checkers.agreement import Agreement


class Bench:
    """A log of four events, and what tables and EVENTS would take of it."""

    def __init__(self) -> None:
        self.truth = f.ForgedTruth()
        self.checker = Agreement(self.truth)
        self.log = f.Log(self.checker)
        self.log.add(f.enrolled())
        self.log.add(f.registered())
        self.log.add(f.requested("w1", "assess"))
        self.log.add(f.granted("w1"))

    def rows(self, after: int, up_to: int) -> Rows:
        states: dict[str, State | None] = {}
        made: Rows = {}
        for row in self.log.rows[:up_to]:
            before = states.get(row.stream)
            state, _ = fold(before, decode_event(row.topic, row.state))
            states[row.stream] = state
            if row.position > after and state is not None:
                project(before, state, row.position, made)
        return made

    def copy(self, position: int, *, first: bool = False, data: bytes | None = None) -> None:
        row = self.log.rows[position - 1]
        headers = {subjects.HEADER_POSITION: str(position)}
        subject = subjects.event_subject(row.stream, row.topic)
        self.checker.copied(first, subject, row.state if data is None else data, headers)

    def copied(self) -> list[Any]:
        return [
            (subjects.event_subject(row.stream, row.topic), row.state, {subjects.HEADER_POSITION: str(row.position)})
            for row in self.log.rows
        ]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_event_that_does_not_count(bench: Bench) -> None:
    with f.broken("stale event"):
        bench.log.add(f.granted("w1", attempt=7))


def test_memory_that_is_not_the_fold_of_the_log(bench: Bench) -> None:
    bench.truth.states = {}
    with f.broken("in the writer's memory is not the fold"):
        bench.log.add(f.cancelled("w1"))


def test_the_tables_batch_by_batch(bench: Bench) -> None:
    bench.checker.written(bench.rows(0, 2), 0, 2)
    bench.checker.written(bench.rows(2, 4), 2, 4)


def test_a_batch_with_a_row_too_few_one_too_many_and_a_wrong_one(bench: Bench) -> None:
    right = bench.rows(0, 4)
    key = ("work", "w1")
    with f.broken("not the fold of the log"):
        bench.checker.written({other: row for other, row in right.items() if other != key}, 0, 4)
    bench = Bench()
    with f.broken("not the fold of the log"):
        bench.checker.written({**right, ("work", "w2"): right[key]}, 0, 4)
    bench = Bench()
    with f.broken("not the fold of the log"):
        bench.checker.written({**right, key: bench.rows(0, 3)[key]}, 0, 4)


@pytest.mark.parametrize(("expected", "position"), [(0, 3), (3, 4)], ids=["again", "left out"])
def test_tables_whose_position_does_not_follow(bench: Bench, expected: int, position: int) -> None:
    bench.checker.written(bench.rows(0, 2), 0, 2)
    with f.broken("they were at 2"):
        bench.checker.written(bench.rows(expected, position), expected, position)


def test_events_in_order_and_from_the_start_when_it_was_emptied(bench: Bench) -> None:
    bench.copy(1, first=True)
    bench.copy(2)
    bench.copy(1, first=True)
    bench.copy(2)


@pytest.mark.parametrize("position", [1, 3], ids=["again", "left out"])
def test_events_that_do_not_follow(bench: Bench, position: int) -> None:
    bench.copy(1, first=True)
    with f.broken("the next is 2"):
        bench.copy(position)


def test_events_that_begin_in_the_middle_or_say_something_else(bench: Bench) -> None:
    with f.broken("the next is 1"):
        bench.copy(2, first=True)
    with f.broken("not what the log has there"):
        bench.copy(1, first=True, data=b"{}")


def test_at_rest_nothing_is_behind(bench: Bench) -> None:
    whole = bench.rows(0, 4)
    bench.checker.written(whole, 0, 4)
    with f.broken("EVENTS holds 3"):
        bench.checker.rest_with(whole, bench.copied()[:3])
    with f.broken("the tables are not the fold"):
        bench.checker.rest_with({}, bench.copied())


def test_at_rest_the_audit_finds_nothing(bench: Bench) -> None:
    bench.log.add(f.registered(2))  # with a lease of generation 1 that nobody ended
    bench.checker.written(bench.rows(0, 5), 0, 5)
    with f.broken("the audit found"):
        bench.checker.rest_with(bench.rows(0, 5), bench.copied())
