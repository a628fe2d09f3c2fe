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

import nats
import psycopg
import uvloop

from benchmarks.rawload import Latency, Saturate, connected, frame
from schemas import subjects

SHA = "ab" * 32
LIMIT_S = 120.0


def body(tag: str, number: int) -> bytes:
    ident = f"{tag}-{number}"
    return json.dumps({"command_id": ident, "actor": "bench", "node_id": ident, "credential_sha256": SHA}).encode()


async def saturate(url: str, dsn: str, count: int, window: int, tag: str) -> dict[str, Any]:
    nc = await nats.connect(url)
    bodies = [body(tag, number) for number in range(count)]
    load = await connected(Saturate(url, subjects.rpc_subject("node.enrol"), bodies, window), url)
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


async def latency(url: str, rate: float, seconds: float, tag: str) -> dict[str, Any]:
    """Open-loop arrivals at `rate`; command -> reply and command -> visible row, in milliseconds."""
    count = int(rate * seconds)
    frames = [frame(subjects.rpc_subject("node.enrol"), body(tag, number)) for number in range(count)]
    load = await connected(Latency(url, subjects.WAKE_VIEW, count), url)
    started = time.perf_counter()
    for number, prepared in enumerate(frames):
        delay = started + number / rate - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        load.send(prepared)
    async with asyncio.timeout(LIMIT_S):
        await load.done.wait()
    return {"rate": rate, "reply_ms": percentiles(load.reply_ms), "visible_ms": percentiles(load.visible_ms)}


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
        result = uvloop.run(latency(url, float(first), float(second), tag))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
