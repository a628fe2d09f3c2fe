"""Replay: decode, fence and fold a log, beside reading the same rows raw; and rebuilding the tables.

    python -m benchmarks.replay fill DSN WORK_ITEMS
    python -m benchmarks.replay measure DSN

The log is a mix as serving makes it: work requested, leased, renewed, progressed with signed evidence,
completed. `raw` is a binary cursor that fetches the rows and does nothing with them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import msgspec
import psycopg

from domain.folding.fold import fold
from domain.folding.states import State
from schemas import events as ev
from schemas.evidence import Drained, Evidence, Progress, SignedEvidence
from schemas.work import JobSpec
from services.eventlog.migrate import migrate
from services.eventlog.port import NewEvent
from services.eventlog.postgres import READ, PostgresLog
from services.eventlog.tail import Tail
from services.projector.projector import Projector
from services.projector.store import ViewStore

ROWS = 5_000
EVENTS_PER_APPEND = 1_000
SIGNATURE = "A" * 88


def story(number: int) -> list[ev.Event]:
    """Seven events of one drain job, as the control plane would have written them."""
    work = f"{number:032x}"
    base: dict[str, Any] = {"at_ms": 1_800_000_000_000 + number, "command_id": f"{number:032d}", "actor": "bench"}
    held = {"work_id": work, "generation": "1", "attempt": 1}

    def signed(evidence_number: int, statement: Any) -> SignedEvidence:
        evidence = Evidence(
            f"e{number}-{evidence_number}", "n1", "1", evidence_number, work, 1, base["at_ms"], statement
        )
        return SignedEvidence(msgspec.json.encode(evidence).decode(), SIGNATURE)

    drained = Drained(0, 1.0, 10)
    spec = JobSpec("drain", f"{number:032x}", "ab" * 32, "cd" * 32)
    until_ms = base["at_ms"] + 30_000
    return [
        ev.WorkRequested(work_id=work, node_id="n1", kind="drain", spec=spec, deadline_ms=until_ms, **base),
        ev.LeaseGranted(node_id="n1", token_sha256="ef" * 32, until_ms=until_ms, deadline_ms=until_ms, **held, **base),
        ev.WorkProgressed(stage="loading", signed=signed(1, Progress("loading")), **held, **base),
        ev.WorkProgressed(stage="ready", signed=signed(2, Progress("ready")), **held, **base),
        ev.LeaseRenewed(until_ms=until_ms + 1, **held, **base),
        ev.WorkProgressed(stage="unloading", signed=signed(3, Progress("unloading")), **held, **base),
        ev.WorkCompleted(result=drained, signed=signed(4, drained), **held, **base),
    ]


async def fill(dsn: str, items: int) -> dict[str, Any]:
    migrate(dsn)
    log = PostgresLog(dsn)
    epoch = await log.take_epoch("bench")
    waiting: list[NewEvent] = []
    for number in range(items):
        for version, event in enumerate(story(number), 1):
            waiting.append(NewEvent(f"work-{number:032x}", version, ev.TOPIC_OF[type(event)], ev.encode_event(event)))
        if len(waiting) >= EVENTS_PER_APPEND:
            await log.append(waiting, [], epoch)
            waiting = []
    if waiting:
        await log.append(waiting, [], epoch)
    await log.close()
    return {"events": items * 7}


def replay(dsn: str, *, meaning: bool) -> tuple[int, float]:
    """Events and seconds; with `meaning` each is decoded, fenced and folded, else only fetched."""
    states: dict[str, State | None] = {}
    events, after = 0, 0
    started = time.perf_counter()
    with psycopg.connect(dsn, autocommit=True) as conn, conn.cursor(binary=True) as cursor:
        while rows := cursor.execute(READ.encode(), (after, ROWS), prepare=True).fetchall():
            if meaning:
                for _, stream, _, topic, state in rows:
                    states[stream], reason = fold(states.get(stream), ev.decode_event(topic, state))
                    if reason is not None:
                        raise RuntimeError(f"{topic} on {stream}: {reason}")
            events += len(rows)
            after = rows[-1][0]
    return events, time.perf_counter() - started


async def rebuild(dsn: str) -> tuple[int, float]:
    log, store = PostgresLog(dsn), ViewStore(dsn)
    await store.prepare(rebuild=True)
    end = await log.last_position()
    projector = Projector(log, Tail(log), store)
    started = time.perf_counter()
    while (projector.position or 0) < end:
        await projector.step()
    took_s = time.perf_counter() - started
    await store.close()
    await log.close()
    return end, took_s


def measure(dsn: str) -> dict[str, Any]:
    raw_events, raw_s = replay(dsn, meaning=False)
    events, took_s = replay(dsn, meaning=True)
    rebuilt, rebuild_s = asyncio.run(rebuild(dsn))
    return {
        "events": events, "raw_per_s": raw_events / raw_s, "replay_per_s": events / took_s,
        "rebuild_per_s": rebuilt / rebuild_s,
    }  # fmt: skip


def main() -> None:
    mode, dsn = sys.argv[1:3]
    result = asyncio.run(fill(dsn, int(sys.argv[3]))) if mode == "fill" else measure(dsn)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
