"""When a batch is held back for callers that may come again, and when never."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worker.serving.gathering import SECONDS_MAX, SHARE, SKIPS_MAX, Gathering

TOOK_S = 0.02
HOLD_S = TOOK_S * SHARE


def after_batch(gathering: Gathering, answered: int, waiting: int, most: int = 32, took_s: float = TOOK_S) -> None:
    gathering.done(10.0, took_s, answered, waiting, most)


def test_before_the_first_batch_nobody_is_held() -> None:
    assert Gathering().seconds(0.0, 1) == 0.0


def test_one_caller_alone_is_never_held() -> None:
    gathering = Gathering()
    for _ in range(3):
        after_batch(gathering, answered=1, waiting=0)
        assert gathering.seconds(10.0, 1) == 0.0


def test_who_waits_is_held_until_all_who_were_answered_are_back() -> None:
    gathering = Gathering()
    after_batch(gathering, answered=5, waiting=3)
    assert gathering.seconds(10.0, 3) == pytest.approx(HOLD_S)
    assert gathering.seconds(10.0 + HOLD_S / 2, 7) == pytest.approx(HOLD_S / 2)
    assert gathering.seconds(10.0 + HOLD_S / 2, 8) == 0.0
    assert gathering.seconds(10.0 + HOLD_S, 7) == 0.0


def test_the_time_is_a_share_of_the_batch_and_bounded() -> None:
    gathering = Gathering()
    after_batch(gathering, answered=2, waiting=0, took_s=60.0)
    assert gathering.seconds(10.0, 1) == pytest.approx(SECONDS_MAX)


def test_no_more_are_waited_for_than_fill_a_batch() -> None:
    gathering = Gathering()
    after_batch(gathering, answered=8, waiting=6, most=8)
    assert gathering.expected == 8
    assert gathering.seconds(10.0, 8) == 0.0
    after_batch(gathering, answered=8, waiting=20, most=8)
    assert gathering.seconds(10.0, 20) == 0.0


def batches_until_held(gathering: Gathering) -> int:
    for number in range(1, SKIPS_MAX + 2):
        after_batch(gathering, answered=4, waiting=1)
        if gathering.seconds(10.0, 1) > 0:
            return number
    raise AssertionError("never held again")


def test_callers_that_do_not_come_are_waited_for_ever_less_often_and_those_that_come_again_at_once() -> None:
    gathering = Gathering()
    assert batches_until_held(gathering) == 1

    def pauses() -> Iterator[int]:
        for _ in range(9):
            gathering.held(2)  # one of four came
            yield batches_until_held(gathering)

    assert list(pauses()) == [2, 3, 5, 9, 17, 33, 65, 65, 65]
    gathering.held(3)  # two of four came
    assert batches_until_held(gathering) == 1
