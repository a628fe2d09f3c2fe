"""The answers to a batch that do not fit in one frame: each goes ahead in its own, and none ends the process."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from schemas.codes import Code
from worker.model import child_main, frames
from worker.model.child_main import Child


def answered(size: int) -> frames.Answered:
    return frames.Answered(b"x" * size)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Child, socket.socket]]:
    monkeypatch.setattr(child_main, "ANSWER_BYTES_MAX", 100)
    near, far = socket.socketpair()
    with near, far:
        yield Child(near), far


def early(far: socket.socket) -> frames.Early:
    body = far.recv(frames.checked_length(far.recv(frames.LENGTH_BYTES)))
    answer = frames.decode_answer(body)
    assert isinstance(answer, frames.Early)
    return answer


def test_what_fits_goes_in_one_frame(ends: tuple[Child, socket.socket]) -> None:
    answers = [answered(60), frames.Refused(Code.INPUT_INVALID, "no"), answered(40)]
    assert ends[0]._batch(7, answers).answers == answers


def test_what_does_not_goes_ahead(ends: tuple[Child, socket.socket]) -> None:
    child, far = ends
    batch = child._batch(7, [answered(60), answered(90), answered(40), answered(100)])
    assert batch.answers == [answered(60), frames.Sent(), answered(40), frames.Sent()]
    assert [early(far) for _ in range(2)] == [frames.Early(7, 1, b"x" * 90), frames.Early(7, 3, b"x" * 100)]


def test_one_that_fits_no_frame_is_refused_alone(ends: tuple[Child, socket.socket]) -> None:
    batch = ends[0]._batch(7, [answered(101), answered(1)])
    refused, whole = batch.answers
    assert isinstance(refused, frames.Refused)
    assert refused.code is Code.INPUT_TOO_LARGE
    assert whole == answered(1)
