"""The supervisor with real programs: restarts, crash loops, order, logs, and nothing that outlives its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from schemas.codes import Code, Refusal
from services.embedded import supervisor as supervisor_module
from services.embedded.child import LOG_GENERATIONS_MAX, Child
from services.embedded.data_lock import DataLock
from services.embedded.supervisor import SOURCE_ROOT, ProcessSpec, Program, Supervisor

WAIT_S = 20.0
SLEEPER = "import signal, time; print('up', flush=True); time.sleep(3600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(3600)"
)


def program(tmp_path: Path, name: str, code: str, grace_s: float = 10.0) -> Program:
    return Program(ProcessSpec(name, [sys.executable, "-c", code], dict(os.environ), grace_s), tmp_path / "logs")


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def until(condition: Callable[[], bool], what: str, supervisor: Supervisor | None = None) -> None:
    """Wait until it holds, at most `WAIT_S`, stepping the supervisor if one is given."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        if supervisor:
            await supervisor.step()
        await asyncio.sleep(0.01)


def said(tmp_path: Path, name: str) -> bool:
    log = tmp_path / "logs" / f"{name}.log"
    return log.exists() and "up" in log.read_text()


async def test_what_is_killed_is_started_again_and_its_pid_is_published(tmp_path: Path) -> None:
    told: list[str] = []
    supervisor = Supervisor(tmp_path / "run", lambda name, what: told.append(f"{name} {what}"))
    await supervisor.add(program(tmp_path, "one", SLEEPER))
    await supervisor.add(program(tmp_path, "two", SLEEPER))
    first = supervisor.pid("one")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: supervisor.pid("one") not in (None, first), "it was not started again", supervisor)
    await supervisor.step()
    published = json.loads((tmp_path / "run" / "processes.json").read_text())
    assert published == {"one": supervisor.pid("one"), "two": supervisor.pid("two")}
    assert any("one ended with -9; next start in 0.2 s" in line for line in told)
    await supervisor.stop()
    assert json.loads((tmp_path / "run" / "processes.json").read_text()) == {}


async def test_a_crash_loop_is_told_with_its_count_and_its_last_words(tmp_path: Path) -> None:
    told: list[str] = []
    supervisor = Supervisor(tmp_path / "run", lambda _name, what: told.append(what))
    await supervisor.add(program(tmp_path, "broken", "raise SystemExit('no such table: cheese')"))
    await until(lambda: any("3 times in a row; next start in 0.8 s" in what for what in told), f"{told}", supervisor)
    assert "no such table: cheese" in told[-1]
    await supervisor.stop()


async def test_the_wait_between_starts_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "BACKOFF_S_MIN", 0.001)
    monkeypatch.setattr(supervisor_module, "BACKOFF_S_MAX", 0.004)
    told: list[str] = []
    supervisor = Supervisor(tmp_path / "run", lambda _name, what: told.append(what))
    await supervisor.add(program(tmp_path, "broken", "raise SystemExit(9)"))
    await until(lambda: any("6 times in a row" in what for what in told), f"{told}", supervisor)
    assert all("next start in 0.0 s" in what for what in told if what.startswith("ended"))
    await supervisor.stop()


async def test_stop_goes_backwards_and_kills_what_does_not_listen(tmp_path: Path) -> None:
    told: list[str] = []
    supervisor = Supervisor(tmp_path / "run", lambda name, what: told.append(f"{name} {what}"))
    await supervisor.add(program(tmp_path, "server", SLEEPER))
    await supervisor.add(program(tmp_path, "stubborn", STUBBORN, grace_s=0.3))
    await until(lambda: said(tmp_path, "stubborn"), "it did not come up")
    pids = [supervisor.pid("server"), supervisor.pid("stubborn")]
    began = time.monotonic()
    await supervisor.stop()
    assert time.monotonic() - began < 5
    assert told[-2:] == ["stubborn stopped", "server stopped"]
    assert all(gone(pid or 0) for pid in pids)


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, os, sys
from pathlib import Path
from services.embedded.supervisor import ProcessSpec, Program, Supervisor
async def main():
    supervisor = Supervisor(Path({str(tmp_path)!r}) / "run", lambda name, what: None)
    for name in ("one", "two"):
        spec = ProcessSpec(name, [sys.executable, "-c", {STUBBORN!r}], dict(os.environ))
        await supervisor.add(Program(spec, Path({str(tmp_path)!r}) / "logs"))
    print("started", flush=True)
    while True:
        await supervisor.step()
        await asyncio.sleep(0.1)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=SOURCE_ROOT, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        pids = json.loads((tmp_path / "run" / "processes.json").read_text()).values()
        parent.kill()
    assert len(pids) == 2
    asyncio.run(until(lambda: all(gone(pid) for pid in pids), f"left behind: {pids}"))


def test_a_log_stays_within_its_bound(tmp_path: Path) -> None:
    child = Child("noisy", ["true"], tmp_path / "noisy.log")
    for number in range(6):
        child.log_path.write_text(f"{number}" * 100)
        assert child.rotate_log(bytes_max=100)
        assert not child.rotate_log(bytes_max=100)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["noisy.log", *(f"noisy.log.{number}" for number in range(1, LOG_GENERATIONS_MAX + 1))]
    assert (tmp_path / "noisy.log.1").read_text().startswith("5")
    assert (tmp_path / "noisy.log.2").read_text().startswith("4")


def test_a_data_folder_has_one_holder_and_death_frees_it(tmp_path: Path) -> None:
    hold = f"""
import time
from pathlib import Path
from services.embedded.data_lock import DataLock
lock = DataLock(Path({str(tmp_path)!r})); lock.take(); print("held", flush=True); time.sleep(3600)
"""
    mine = DataLock(tmp_path)
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, cwd=SOURCE_ROOT, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Refusal) as refused:
            mine.take()
        other.kill()
    assert refused.value.code is Code.CONFLICT
    assert refused.value.detail["pid"] == str(other.pid)
    mine.take()
    mine.release()
