"""Supervisor: keeps a list of units running, in order, and ends them in reverse order.

A unit is a server or one of our processes. What ends by itself is started again after a wait that doubles from
`BACKOFF_S_MIN` to `BACKOFF_S_MAX` and begins anew once the unit has run `STEADY_S`. Every end is told, with its
exit code, how often it came in a row, the wait and the last lines of the log: a crash loop is seen, not waited out.

`step()` looks once and never waits longer than one unit's own bounded start. `<run_dir>/processes.json` always names
the pids of what runs, written whole, for `tenure doctor` and for tests.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from schemas.codes import Refusal
from services.embedded.child import Child

BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 10.0
STEADY_S = 30.0
STEP_S = 0.2
LOG_LINES_TOLD = 3
PROCESSES_FILE = "processes.json"

Tell = Callable[[str, str], None]  # the unit's name, and what happened to it
SOURCE_ROOT = Path(__file__).resolve().parents[2]


class Unit(Protocol):
    """Something that is started, runs in one child process, and is stopped; each within a bound of its own."""

    @property
    def child(self) -> Child: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True)
class ProcessSpec:
    """A program of ours: `argv`, and the whole environment it gets."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    grace_s: float = 10.0


class Program:
    """The unit of a ProcessSpec."""

    def __init__(self, spec: ProcessSpec, log_dir: Path) -> None:
        self.child = Child(
            name=spec.name,
            argv=spec.argv,
            env=spec.env,
            log_path=log_dir / f"{spec.name}.log",
            grace_s=spec.grace_s,
        )

    async def start(self) -> None:
        self.child.start()

    async def stop(self) -> None:
        await self.child.stop()


def module_argv(module: str) -> list[str]:
    """How to run a module of ours. `-P`: the working folder is no place to import from."""
    return [sys.executable, "-P", "-m", module]


def module_env(settings_env: Mapping[str, str]) -> dict[str, str]:
    """Our environment without its `TENURE_*`, then `settings_env`, and the path that our packages were found on."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    path = [str(SOURCE_ROOT), *filter(None, [inherited.get("PYTHONPATH")])]
    return {**inherited, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", **settings_env}


@dataclass
class _Kept:
    unit: Unit
    started_at: float = 0.0
    up: bool = False
    ended_in_a_row: int = 0
    start_at: float = field(default=0.0)  # when the next start is due, on the monotonic clock


class Supervisor:
    def __init__(self, run_dir: Path, tell: Tell) -> None:
        self._run_dir = run_dir
        self._tell = tell
        self._kept: dict[str, _Kept] = {}
        self._written: dict[str, int] | None = None

    async def add(self, unit: Unit) -> None:
        """Start a unit and keep it from now on. A unit that fails its first start is not kept."""
        name = unit.child.name
        if name in self._kept:
            raise ValueError(f"{name} is kept already")
        await unit.start()
        self._kept[name] = _Kept(unit, started_at=time.monotonic(), up=True)
        self._tell(name, f"started, pid {unit.child.pid}")
        self._write()

    def pid(self, name: str) -> int | None:
        return self._kept[name].unit.child.pid

    def names(self) -> list[str]:
        return list(self._kept)

    def child(self, name: str) -> Child:
        return self._kept[name].unit.child

    async def step(self) -> None:
        """Look once: note what ended, start what is due, keep logs within bounds, write the pids."""
        for name, kept in self._kept.items():
            now = time.monotonic()
            if kept.unit.child.running:
                if kept.ended_in_a_row and now - kept.started_at >= STEADY_S:
                    kept.ended_in_a_row = 0
                kept.unit.child.rotate_log()
            elif kept.up:
                kept.up = False
                self._ended(name, kept, f"ended with {kept.unit.child.exit_code}")
            elif now >= kept.start_at:
                await self._restart(name, kept)
        self._write()

    async def stop(self) -> None:
        """Stop everything, the last one first. Each stop has the bound of its unit."""
        while self._kept:
            name, kept = self._kept.popitem()
            was = kept.unit.child.running
            await kept.unit.stop()
            if was:
                self._tell(name, "stopped")
            self._write()

    async def _restart(self, name: str, kept: _Kept) -> None:
        try:
            await kept.unit.start()
        except (Refusal, OSError) as error:
            await kept.unit.stop()
            self._ended(name, kept, f"did not start: {error}")
            return
        kept.up, kept.started_at = True, time.monotonic()
        self._tell(name, f"started again, pid {kept.unit.child.pid}")

    def _ended(self, name: str, kept: _Kept, how: str) -> None:
        kept.ended_in_a_row += 1
        wait_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** (kept.ended_in_a_row - 1))
        kept.start_at = time.monotonic() + wait_s
        times = f", {kept.ended_in_a_row} times in a row" if kept.ended_in_a_row > 1 else ""
        last = kept.unit.child.log_tail(LOG_LINES_TOLD).strip()
        shown = f"\n{last}" if last else ""
        self._tell(name, f"{how}{times}; next start in {wait_s:.1f} s; log {kept.unit.child.log_path}{shown}")

    def _write(self) -> None:
        pids = {name: kept.unit.child.pid for name, kept in self._kept.items()}
        running = {name: pid for name, pid in pids.items() if pid is not None}
        if running == self._written:
            return
        self._run_dir.mkdir(parents=True, exist_ok=True)
        fresh = self._run_dir / f".{PROCESSES_FILE}.tmp"
        fresh.write_text(json.dumps(running, indent=1))
        fresh.replace(self._run_dir / PROCESSES_FILE)
        self._written = running
