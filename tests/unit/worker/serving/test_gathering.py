"""Whether a batch waits for callers that were just answered."""

from __future__ import annotations

from worker.serving.gathering import SHARE, SKIPS_MAX, TRIPS_MAX, TRIPS_QUIET, Gathering


def test_a_caller_alone_is_never_held() -> None:
    gathering = Gathering()
    assert not gathering.done(answered=1, waiting=0, most=32)


def test_those_who_were_answered_and_those_who_wait_are_expected_together() -> None:
    gathering = Gathering()
    assert gathering.done(answered=4, waiting=4, most=32)
    assert gathering.expected == 8


def test_no_more_than_a_batch_is_expected() -> None:
    gathering = Gathering()
    assert gathering.done(answered=6, waiting=6, most=8)
    assert gathering.expected == 8
    assert not gathering.done(answered=8, waiting=8, most=8)


def test_trips_go_on_while_they_bring_somebody() -> None:
    gathering = Gathering()
    gathering.done(answered=8, waiting=0, most=32)
    assert [gathering.trip(waiting) for waiting in range(1, 9)] == [True] * 7 + [False]


def test_trips_that_bring_nobody_end_the_hold() -> None:
    gathering = Gathering()
    gathering.done(answered=8, waiting=1, most=32)
    assert [gathering.trip(1) for _ in range(TRIPS_QUIET)] == [True] * (TRIPS_QUIET - 1) + [False]


def test_one_who_is_lost_and_one_who_comes_in_turn_do_not_hold_for_ever() -> None:
    gathering = Gathering()
    gathering.done(answered=100, waiting=0, most=200)
    made = 1
    while gathering.trip(made % 2):
        made += 1
    assert made <= TRIPS_MAX


def test_nobody_is_held_for_callers_who_do_not_come() -> None:
    gathering = Gathering()
    skipped = []
    for _ in range(8):
        gathering.over(0, 0.0)
        count = 0
        while not gathering.done(answered=8, waiting=0, most=32):
            count += 1
        skipped.append(count)
    assert skipped == [1, 2, 4, 8, 16, 32, SKIPS_MAX, SKIPS_MAX]
    gathering.over(4, 0.0)
    assert gathering.done(answered=8, waiting=0, most=32)


def test_a_bus_that_is_slow_beside_the_model_is_not_waited_for() -> None:
    gathering = Gathering()
    gathering.done(answered=8, waiting=0, most=32)
    gathering.over(8, SHARE * 1.01)
    assert not gathering.done(answered=8, waiting=0, most=32)
