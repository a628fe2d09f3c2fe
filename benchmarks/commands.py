"""Commands per second through the whole path, and its latencies.

A load generator in a process of its own sends `node.enrol` commands by request, with a bounded number
outstanding. The clock stops when every command is answered *and* EVENTS and the tables have the last
position: decided, durable, published and projected.

    python -m benchmarks.commands saturate URL DSN COUNT WINDOW
    python -m benchmarks.commands latency URL DSN RATE SECONDS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import msgspec
import nats
import psycopg
import uvloop
from nats.aio.msg import Msg

from benchmarks.rawload import open_load
from schemas import subjects
from schemas.replies import Reply

SHA = "ab" * 32
LIMIT_S = 120.0
_decode = msgspec.json.Decoder(Reply).decode


def body(tag: str, number: int) -> bytes:
    ident = f"{tag}-{number}"
    return json.dumps({"command_id": ident, "actor": "bench", "node_id": ident, "credential_sha256": SHA}).encode()


async def saturate(url: str, dsn: str, count: int, window: int, tag: str) -> dict[str, Any]:
    nc = await nats.connect(url)
    bodies = [body(tag, number) for number in range(count)]
    load = await open_load(url, subjects.rpc_subject("node.enrol"), bodies, window)
    started = time.perf_counter()
    load.start()
    async with asyncio.timeout(LIMIT_S):
        await load.done.wait()
        replied_s = time.perf_counter() - started
        await _everywhere(nc, dsn)
    total_s = time.perf_counter() - started
    await nc.close()
    return {
        "commands": count, "refused": load.refused, "replied_s": replied_s, "total_s": total_s,
        "per_s": count / total_s,
    }  # fmt: skip


async def latency(url: str, dsn: str, rate: float, seconds: float, tag: str) -> dict[str, Any]:
    """Open-loop arrivals at `rate`; command -> reply and command -> visible row, in milliseconds."""
    nc = await nats.connect(url)
    subject, inbox = subjects.rpc_subject("node.enrol"), nc.new_inbox()
    sent: dict[str, float] = {}
    replied: list[float] = []
    waiting: list[tuple[int, float]] = []
    visible: list[float] = []

    async def on_reply(message: Msg) -> None:
        now = time.perf_counter()
        reply = _decode(message.data)
        begun = sent.pop(reply.command_id)
        replied.append((now - begun) * 1000)
        waiting.append((reply.position or 0, begun))
        _reap()

    seen, count, finished = 0, int(rate * seconds), asyncio.Event()

    def _reap() -> None:
        now = time.perf_counter()
        while waiting and waiting[0][0] <= seen:
            visible.append((now - waiting.pop(0)[1]) * 1000)
        if len(visible) == count:
            finished.set()

    async def on_view(message: Msg) -> None:
        nonlocal seen
        seen = max(seen, int(message.data))
        _reap()

    await nc.subscribe(inbox, cb=on_reply)
    await nc.subscribe(subjects.WAKE_VIEW, cb=on_view)
    await nc.flush()
    started = time.perf_counter()
    for number in range(count):
        due = started + number / rate
        delay = due - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        ident = f"{tag}-{number}"
        sent[ident] = time.perf_counter()
        await nc.publish(subject, body(tag, number), reply=inbox)
    async with asyncio.timeout(LIMIT_S):
        await finished.wait()
    await nc.close()
    return {"rate": rate, "reply_ms": percentiles(replied), "visible_ms": percentiles(visible)}


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": 0.5, "p99": 0.99}
    picked = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items()}
    return {**picked, "max": ordered[-1]}


async def _everywhere(nc: nats.NATS, dsn: str) -> None:
    """Wait until EVENTS and the tables stand at the end of the log."""
    js = nc.jetstream()
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("SELECT max(notification_id), count(*) FROM tenure.stored_events").fetchone()
        newest, events = row if row is not None else (0, 0)
        while True:
            row = conn.execute("SELECT position FROM view.tracking").fetchone()
            info = await js.stream_info(subjects.STREAM_EVENTS)
            if row is not None and row[0] >= newest and info.state.messages >= events:
                return
            await asyncio.sleep(0.005)


def main() -> None:
    mode, url, dsn, first, second, tag = sys.argv[1:7]
    if mode == "saturate":
        result = uvloop.run(saturate(url, dsn, int(first), int(second), tag))
    else:
        result = uvloop.run(latency(url, dsn, float(first), float(second), tag))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
