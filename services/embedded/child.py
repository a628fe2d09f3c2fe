"""One child process that we started, and that cannot outlive us.

A child is put in a process group of its own, so that Ctrl-C at a terminal reaches only the supervisor, which
then stops its children in order. The kernel sends it `death_signal` when the thread that started it ends
(PR_SET_PDEATHSIG), so start children from a thread that lives as long as they should: the main thread.

Its output is appended to one log file, never longer than `LOG_BYTES_MAX`, with `LOG_GENERATIONS_MAX` older ones
kept. Rotation copies and truncates: the child keeps its descriptor, and because it appends, truncation is safe.

Stopping is an escalation with a bound at each rung: the signals of `stop_signals` in turn, each with `grace_s`,
then SIGKILL to the whole group.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOG_BYTES_MAX = 8 * 1024 * 1024
LOG_GENERATIONS_MAX = 2
KILL_WAIT_S = 10.0
POLL_S = 0.01

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent(death_signal: int) -> Callable[[], None]:
    parent_pid = os.getpid()

    def before_exec() -> None:
        # Runs after the change of user, which clears the setting. The parent may have died before it took hold.
        if _libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0 or os.getppid() != parent_pid:
            os._exit(127)

    return before_exec


@dataclass
class Child:
    """`user` is a system user to switch to (needs root); None keeps ours."""

    name: str
    argv: Sequence[str]
    log_path: Path
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: Path | None = None
    user: str | None = None
    death_signal: signal.Signals = signal.SIGKILL
    stop_signals: Sequence[signal.Signals] = (signal.SIGTERM,)
    grace_s: float = 10.0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    def start(self) -> int:
        """Start it, and give its pid. The log of an earlier run is kept and appended to."""
        if self.running:
            raise RuntimeError(f"{self.name} already runs with pid {self.pid}")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.rotate_log()
        descriptor = os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own argument list, no shell
                list(self.argv),
                env=dict(self.env),
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                user=self.user,
                group=self.user,
                extra_groups=[] if self.user else None,
                process_group=0,
                preexec_fn=_die_with_parent(self.death_signal),
            )
        finally:
            os.close(descriptor)
        return self._process.pid

    @property
    def pid(self) -> int | None:
        """The pid while it runs; None before the start and after the end."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def exit_code(self) -> int | None:
        """How the last run ended: negative for a signal; None while it runs or before it started."""
        return self._process.poll() if self._process else None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, if it still runs."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the whole group, now. The end is seen by `wait`."""
        if self._process and self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    async def wait(self, timeout_s: float) -> bool:
        """True when it has ended within the bound."""
        deadline = time.monotonic() + timeout_s
        while self.running:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def stop(self) -> int | None:
        """Stop it in at most `len(stop_signals) * grace_s + KILL_WAIT_S`; its exit code, None if it never ran."""
        for number in self.stop_signals:
            self.signal(number)
            if await self.wait(self.grace_s):
                return self.exit_code
        self.kill()
        if not await self.wait(KILL_WAIT_S):
            raise RuntimeError(f"{self.name} (pid {self.pid}) did not end on SIGKILL within {KILL_WAIT_S} s")
        return self.exit_code

    def rotate_log(self, bytes_max: int = LOG_BYTES_MAX) -> bool:
        """Move a log that reached `bytes_max` aside; True if it was. What is written meanwhile may be lost."""
        try:
            if self.log_path.stat().st_size < bytes_max:
                return False
        except FileNotFoundError:
            return False
        for number in range(LOG_GENERATIONS_MAX, 1, -1):
            older = self.log_path.with_name(f"{self.log_path.name}.{number - 1}")
            if older.exists():
                older.replace(self.log_path.with_name(f"{self.log_path.name}.{number}"))
        shutil.copyfile(self.log_path, self.log_path.with_name(f"{self.log_path.name}.1"))
        os.truncate(self.log_path, 0)
        return True

    def log_tail(self, lines_max: int = 15, bytes_max: int = 8192) -> str:
        """The last lines of the log, for an error message."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, self.log_path.stat().st_size - bytes_max))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-lines_max:])
        except FileNotFoundError:
            return ""
