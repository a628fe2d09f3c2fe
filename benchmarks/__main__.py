"""`make bench`: ours beside its comparisons, interleaved in one run; writes benchmarks/RESULTS.md.

Rounds go A B C A B C ..., so that a machine that drifts drifts for all; the medians of the rounds are
quoted, and each ratio is the median of the ratios within a round. Every figure says what was measured with
what. `--quick` takes fewer and shorter rounds and does not write the file.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.report import Goal, write
from benchmarks.serving import table
from benchmarks.serving.measure import FULL as FULL_SERVING
from benchmarks.serving.measure import QUICK as QUICK_SERVING
from benchmarks.serving.measure import serving
from benchmarks.stack import Servers, servers, services

OUTPUT = Path(__file__).with_name("RESULTS.md")
TIMEOUT_S = 300.0


class Size(NamedTuple):
    rounds: int
    commands: int
    warm_up: int
    window: int
    pgbench_s: int
    library_events: int
    latency_s: float
    work_items: int
    loads: int


FULL = Size(3, 60_000, 20_000, 2_000, 5, 8_000, 6.0, 30_000, 15)
QUICK = Size(1, 10_000, 5_000, 2_000, 2, 2_000, 2.0, 5_000, 3)


async def program(*arguments: str) -> Any:
    """The JSON that one of our measuring programs prints."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(TIMEOUT_S):
        out, _ = await child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} ended with {child.returncode}")
    return json.loads(out)


async def pgbench(stack: Servers, name: str, seconds: int) -> float:
    """One-row commits per second on 8 connections, prepared, with the server's own pgbench."""
    dsn = stack.postgres.create_database(name)
    script = stack.folder / "insert.sql"
    script.write_text("INSERT INTO bench (body) VALUES ('" + "x" * 200 + "');\n")
    script.chmod(0o644)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE bench (id bigserial PRIMARY KEY, body text NOT NULL)")
    options = conninfo_to_dict(dsn)
    command = [
        str(stack.postgres.bin_dir / "pgbench"), "-n", "-M", "prepared", "-c", "8", "-j", "2", "-T", str(seconds),
        "-f", str(script), "-h", str(options["host"]), "-p", str(options["port"]), "-U", str(options["user"]),
        str(options["dbname"]),
    ]  # fmt: skip
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"pgbench: {errors.decode()}")
    stack.postgres.drop_database(name)
    line = next(line for line in out.decode().splitlines() if line.startswith("tps"))
    return float(line.split("=")[1].split("(")[0])


async def one_round(stack: Servers, number: int, size: Size, tell: Callable[[str], None]) -> dict[str, Any]:
    """Every comparison once, each on a database of its own."""
    url, got = stack.nats_url, {}
    async with services(stack, f"ours{number}") as dsn:
        await program("benchmarks.commands", "saturate", url, dsn, str(size.warm_up), str(size.window), "warm")
        got["ours"] = await program(
            "benchmarks.commands", "saturate", url, dsn, str(size.commands), str(size.window), "full"
        )
        rate = got["ours"]["per_s"] / 10
        tell(f"commands: {got['ours']['per_s']:,.0f}/s")
        got["ours_latency"] = await program(
            "benchmarks.commands", "latency", url, dsn, f"{rate:.0f}", str(size.latency_s), "slow"
        )
        tell(f"visible p50: {got['ours_latency']['visible_ms']['p50']:.2f} ms at {rate:,.0f}/s")
    got["pgbench"] = await pgbench(stack, f"pgbench{number}", size.pgbench_s)
    tell(f"pgbench: {got['pgbench']:,.0f}/s")
    dsn = stack.postgres.create_database(f"library{number}")
    got["library"] = await program("benchmarks.library", "throughput", dsn, str(size.library_events))
    rate = got["library"]["per_s"] / 10
    got["library_latency"] = await program("benchmarks.library", "latency", dsn, f"{rate:.0f}", str(size.latency_s))
    stack.postgres.drop_database(f"library{number}")
    tell(f"library: {got['library']['per_s']:,.0f}/s, p50 {got['library_latency']['visible_ms']['p50']:.2f} ms")
    got["replay"] = await program("benchmarks.replay", "measure", stack.postgres.dsn("replay"))
    tell(f"replay: {got['replay']['replay_per_s']:,.0f} of {got['replay']['raw_per_s']:,.0f}/s")
    return got


def goals(rounds: list[dict[str, Any]], served: dict[str, Any], loaded: dict[str, Any]) -> list[Goal]:
    def ratio(over: Callable[[dict[str, Any]], float]) -> float:
        return median(over(got) for got in rounds)

    return [
        Goal("commands/s ÷ pgbench one-row commits/s, 8 connections", ratio(
            lambda g: g["ours"]["per_s"] / g["pgbench"]), 1.0, at_least=True),
        Goal("commands/s ÷ ProjectionRunner events/s", ratio(
            lambda g: g["ours"]["per_s"] / g["library"]["per_s"]), 8.0, at_least=True),
        Goal("command → visible row p50 ÷ library save → visible p50, each at 10 % load", ratio(
            lambda g: g["ours_latency"]["visible_ms"]["p50"] / g["library_latency"]["visible_ms"]["p50"]), 0.9,
            at_least=False),
        Goal("command → visible row p99 ÷ its p50, at 10 % load", ratio(
            lambda g: g["ours_latency"]["visible_ms"]["p99"] / g["ours_latency"]["visible_ms"]["p50"]), 3.0,
            at_least=False),
        Goal("replay (decode, fence, fold) ÷ raw binary cursor", ratio(
            lambda g: g["replay"]["replay_per_s"] / g["replay"]["raw_per_s"]), 0.2, at_least=True),
        *table.goals(served),
        Goal("load to first vector, MiniLM: fresh interpreter ÷ copy of the fork server", loaded["ratio"], 20.0,
            at_least=True),
    ]  # fmt: skip


async def bench(size: Size) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any], str]:
    rounds = []
    async with servers() as stack:
        print("filling a log to replay", flush=True)
        dsn = stack.postgres.create_database("replay")
        await program("benchmarks.replay", "fill", dsn, str(size.work_items))
        for number in range(size.rounds):
            print(f"round {number + 1} of {size.rounds}", flush=True)
            rounds.append(await one_round(stack, number, size, lambda line: print(f"  {line}", flush=True)))
        with psycopg.connect(dsn) as conn:
            row = conn.execute("SELECT split_part(version(), ' on ', 1)").fetchone()
            version = str(row[0]) if row is not None else "PostgreSQL"
    print("serving", flush=True)
    served = await serving(*(QUICK_SERVING if size is QUICK else FULL_SERVING))
    print("loads", flush=True)
    return rounds, served, await program("benchmarks.loads", str(size.loads)), version


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    size = QUICK if quick else FULL
    rounds, served, loaded, version = asyncio.run(bench(size))
    text = write(rounds, goals(rounds, served, loaded), table.lines(served), loaded, size._asdict(), version)
    if quick:
        print(text)
    else:
        OUTPUT.write_text(text)
        print(f"written: {OUTPUT.name}")


if __name__ == "__main__":
    main()
