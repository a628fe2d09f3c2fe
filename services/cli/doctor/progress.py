"""What `tenure doctor` looks at twice: whether what waits is being taken.

A reader can be there and take nothing: its consumer was deleted, or is held up, or the process behind it hangs. Where
nothing waits, or its consumer moves between two looks, all is well. Where something waits and nothing has moved after
PROGRESS_S, that is an alarm, however little it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from projections.rows import NodeRow
from schemas import subjects
from services.cli.doctor.findings import Check, failed, ok, warning
from services.client import Client
from services.client.wire import NoResponder, Silent
from services.control.durable import CONSUMER

PROGRESS_S = 2.0
CONSUMER_TIMEOUT_S = 2.0
LAG_MAX = 1_000  # events; more than this is not a moment's delay

Sleep = Callable[[float], Awaitable[None]]
Look = Callable[[], Awaitable[tuple[int, str]]]


class _Sequence(msgspec.Struct):
    consumer_seq: int = 0


class _Info(msgspec.Struct):
    """The part of a consumer's description that is looked at; `error` where there is none."""

    num_pending: int = 0
    num_ack_pending: int = 0
    delivered: _Sequence = msgspec.field(default_factory=_Sequence)
    ack_floor: _Sequence = msgspec.field(default_factory=_Sequence)
    error: dict[str, object] | None = None

    @property
    def waiting(self) -> int:
        """Messages that nobody has taken, or has taken and not acknowledged."""
        return self.num_pending + self.num_ack_pending

    def moved(self, later: _Info) -> bool:
        return (self.delivered, self.ack_floor) != (later.delivered, later.ack_floor)


class Reader(NamedTuple):
    """A durable consumer, and who reads with it."""

    stream: str
    consumer: str
    who: str


def readers(nodes: Sequence[NodeRow]) -> list[Reader]:
    """Who should be reading now."""
    control = [Reader(stream, CONSUMER, "the control plane") for stream in (
        subjects.STREAM_COMMANDS, subjects.STREAM_EVIDENCE,
    )]  # fmt: skip
    alive = [node.id for node in nodes if node.enabled and node.session == "alive"]
    return control + [Reader(subjects.STREAM_WORK, subjects.work_consumer(node), f"node {node}") for node in alive]


async def readers_check(client: Client, nodes: Sequence[NodeRow], sleep: Sleep = asyncio.sleep) -> Check:
    """Whether every reader has its consumer, and takes what waits there."""
    try:
        return await _readers_check(client, readers(nodes), sleep)
    except Silent:
        advice = "Allow the operator's login to publish on $JS.API.CONSUMER.INFO.>, or look at NATS."
        return warning("readers", "JetStream did not say what waits", advice)


async def _readers_check(client: Client, wanted: list[Reader], sleep: Sleep) -> Check:
    first = [await _info(client, reader) for reader in wanted]
    suspects = [
        (reader, before) for reader, before in zip(wanted, first, strict=True) if before is None or before.waiting
    ]
    troubles: list[str] = []
    if suspects:
        await sleep(PROGRESS_S)
    for reader, before in suspects:
        now = await _info(client, reader)
        if now is None:
            troubles.append(f"{reader.stream}: {reader.who} has no consumer")
        elif before is not None and now.waiting and not before.moved(now):
            troubles.append(f"{reader.stream}: {now.waiting} wait and {reader.who} took none in {PROGRESS_S:g} s")
    if troubles:
        advice = "Look at its log. A consumer is made again by itself; restart the process if that does not happen."
        return failed("readers", "; ".join(troubles), advice)
    waiting = sum(info.waiting for info in first if info is not None)
    return ok("readers", f"{len(wanted)} consumers, {waiting} messages waiting")


async def _info(client: Client, reader: Reader) -> _Info | None:
    """None where the consumer is not there. Raises Silent where nobody says."""
    subject = f"$JS.API.CONSUMER.INFO.{reader.stream}.{reader.consumer}"
    try:
        info = msgspec.json.decode(await client.wire.request(subject, b"", CONSUMER_TIMEOUT_S), type=_Info)
    except (NoResponder, msgspec.DecodeError):
        return None
    return info if info.error is None else None


async def follower_check(
    name: str,
    process: str,
    last: int | None,
    look: Look,
    sleep: Sleep = asyncio.sleep,
) -> Check:
    """Whether what follows the log is near its end, or on its way there. `look` gives a position and a remark."""
    position, remark = await look()
    if last is None:
        return ok(name, f"at position {position}{remark}; the log could not be compared")
    if position < last:
        before = position
        await sleep(PROGRESS_S)
        position, remark = await look()
        if position == before:
            found = f"at position {position}, {last - position} behind the log, and not moving{remark}"
            return failed(name, found, f"Look at the {process}'s log; it has stopped or cannot go on.")
    behind = max(0, last - position)
    found = f"at position {position}, {behind} behind the log{remark}"
    if behind > LAG_MAX:
        return failed(name, found, f"Look at the {process}'s log; it does not keep up.")
    return ok(name, found)
