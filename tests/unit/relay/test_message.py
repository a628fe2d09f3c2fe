"""What is measured is what is sent, and what no bus can carry is known before it is sent."""

from __future__ import annotations

import pytest

from schemas import subjects
from services.eventlog.port import LogRow
from services.relay.message import RUNBOOK, SUBJECT_MAX, message_of, obstacle_of

MIB = 1024 * 1024


def row(stream: str = "node-a", state: bytes = b"{}") -> LogRow:
    return LogRow(7, stream, 3, "node.enabled.v1", state)


def test_a_message_says_where_its_event_stands() -> None:
    message = message_of(row(state=b'{"traceparent":"00-ab"}'), sequence=5, previous=4)
    assert (message.position, message.subject) == (7, "tenure.evt.v1.node.a.node-enabled")
    assert message.headers == {
        "Nats-Expected-Last-Sequence": "5",
        subjects.HEADER_MSG_ID: "7",
        subjects.HEADER_POSITION: "7",
        subjects.HEADER_PREVIOUS: "4",
        subjects.HEADER_TOPIC: "node.enabled.v1",
        subjects.HEADER_VERSION: "3",
        subjects.HEADER_TRACEPARENT: "00-ab",
    }


def test_the_size_is_that_of_headers_and_payload() -> None:
    message = message_of(row(state=b"x" * 100), 5, 4)
    written = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in message.headers.items()) + "\r\n"
    assert message.size_bytes == len(written) + 100


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_what_is_over_the_limit_with_its_headers_is_not_carried(spare: int) -> None:
    message = message_of(row(state=b"x" * (MIB - 200)), 5, 4)
    obstacle = obstacle_of(message, message.size_bytes + spare)
    assert (obstacle is None) == (spare >= 0)
    if obstacle is not None:
        assert str(message.size_bytes) in obstacle.reason
        assert "max_payload" in obstacle.advice
        assert RUNBOOK in obstacle.advice


@pytest.mark.parametrize("ident", ["a\n", "a b", "a\t", "", "a..b", "*", ">", "a.*", "a\0", "a\x7f", "x" * SUBJECT_MAX])
def test_what_no_subject_can_name_is_not_carried(ident: str) -> None:
    obstacle = obstacle_of(message_of(row(f"node-{ident}"), 5, 4), MIB)
    assert obstacle is not None
    assert RUNBOOK in obstacle.advice


@pytest.mark.parametrize("ident", ["a", "A-b_c", "ünïcode", "a*b", "a>", "f" * 200])
def test_whatever_a_subject_can_name_is_carried(ident: str) -> None:
    assert obstacle_of(message_of(row(f"node-{ident}"), 5, 4), MIB) is None
