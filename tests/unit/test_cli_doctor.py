"""What `tenure doctor` calls no progress: something waits, and nothing moved between two looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import json

from schemas import subjects
from services.cli.doctor.progress import LAG_MAX, follower_check, readers_check
from services.client import Client
from services.client.wire import Silent
from tests.fake_wire import FakeWire, node

INFO = "$JS.API.CONSUMER.INFO"
COMMANDS, EVIDENCE = (f"{INFO}.{stream}.control" for stream in (subjects.STREAM_COMMANDS, subjects.STREAM_EVIDENCE))
WORK = f"{INFO}.{subjects.STREAM_WORK}.worker-local"
LAST = LAG_MAX + 100
GONE = {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}


def consumer(pending: int = 0, unacknowledged: int = 0, delivered: int = 0, acknowledged: int = 0) -> dict[str, Any]:
    return {
        "num_pending": pending, "num_ack_pending": unacknowledged, "delivered": {"consumer_seq": delivered},
        "ack_floor": {"consumer_seq": acknowledged},
    }  # fmt: skip


class Bench:
    """JetStream's word on three consumers, before and after the wait between two looks."""

    def __init__(self) -> None:
        self.wire = FakeWire()
        self.waits = 0
        self.said: dict[str, list[dict[str, Any]]] = {}
        for subject in (COMMANDS, EVIDENCE, WORK):
            self.consumer(subject, consumer(), consumer())

    def consumer(self, subject: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        self.said[subject] = [before, after]
        self.wire.answers[subject] = lambda payload: json.encode(self.said[subject][min(self.waits, 1)])

    async def sleep(self, seconds: float) -> None:
        self.waits += 1

    async def readers(self, session: str = "alive") -> tuple[str, str]:
        check = await readers_check(Client(self.wire, "test"), [node(session=session)], self.sleep)
        return check.status, check.found


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_where_nothing_waits_one_look_is_enough(bench: Bench) -> None:
    assert await bench.readers() == ("ok", "3 consumers, 0 messages waiting")
    assert bench.waits == 0


@pytest.mark.parametrize(
    "after", [consumer(), consumer(pending=5, delivered=1), consumer(pending=5, unacknowledged=1, acknowledged=1)]
)
async def test_what_waits_and_moves_is_well(bench: Bench, after: dict[str, Any]) -> None:
    bench.consumer(EVIDENCE, consumer(pending=5), after)
    assert (await bench.readers())[0] == "ok"
    assert bench.waits == 1


@pytest.mark.parametrize("stuck", [consumer(pending=3), consumer(unacknowledged=3, delivered=3)])
async def test_what_waits_and_does_not_move_is_an_alarm(bench: Bench, stuck: dict[str, Any]) -> None:
    bench.consumer(COMMANDS, stuck, stuck)
    assert await bench.readers() == ("failed", "COMMANDS: 3 wait and the control plane took none in 2 s")


async def test_a_consumer_that_is_not_there_is_an_alarm_unless_it_is_made_again(bench: Bench) -> None:
    bench.consumer(WORK, GONE, consumer())
    assert (await bench.readers())[0] == "ok"
    bench.waits = 0
    bench.consumer(WORK, GONE, GONE)
    assert await bench.readers() == ("failed", "WORK: node local has no consumer")


async def test_nobody_reads_for_a_worker_that_is_gone(bench: Bench) -> None:
    bench.consumer(WORK, GONE, GONE)
    assert await bench.readers("lost") == ("ok", "2 consumers, 0 messages waiting")


async def test_a_login_that_may_not_ask_says_so_and_raises_no_alarm(bench: Bench) -> None:
    def silent(payload: bytes) -> bytes:
        raise Silent(COMMANDS)

    bench.wire.answers[COMMANDS] = silent
    assert (await bench.readers())[0] == "warning"


@pytest.mark.parametrize(
    ("positions", "status", "said"),
    [
        ([LAST], "ok", f"at position {LAST}, 0 behind the log"),
        ([LAST - 9, LAST - 1], "ok", f"at position {LAST - 1}, 1 behind the log"),
        ([LAST - 1, LAST - 1], "failed", f"at position {LAST - 1}, 1 behind the log, and not moving"),
        ([1, 2], "failed", f"at position 2, {LAST - 2} behind the log"),
    ],
)
async def test_what_follows_the_log_has_to_move(bench: Bench, positions: list[int], status: str, said: str) -> None:
    look = looking(bench, positions)
    check = await follower_check("relay", "relay", LAST, look, bench.sleep)
    assert (check.status, check.found) == (status, said)


async def test_without_the_log_there_is_nothing_to_compare(bench: Bench) -> None:
    assert (await follower_check("relay", "relay", None, looking(bench, [7]), bench.sleep)).status == "ok"


def looking(bench: Bench, positions: list[int]) -> Callable[[], Any]:
    async def look() -> tuple[int, str]:
        return positions[bench.waits], ""

    return look
