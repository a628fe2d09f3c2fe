"""Processes that model processes left behind, and that came to this one: they are ended and waited for.

The worker is the reaper of everything below it (PR_SET_CHILD_SUBREAPER). So a process whose parent ended becomes
the worker's child: wanted where a fork server hands over a model process, a stray everywhere else, say when a model
process forked. A stray is a child of this process that it did not start, in a session other than its own: what a
library starts in this process stays in this process's session, and nothing can come into that from outside.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

import structlog

from worker.sandbox import kernel

STRAY_SECONDS_MAX = 5.0
STRAY_STEP_SECONDS = 0.005
_log = structlog.get_logger(__name__)


def become_reaper(on: bool = True) -> bool:
    """Whether it was one before. Exit codes can be waited for from here on, even if the starter had that ignored."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = kernel.is_child_subreaper()
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, int(on))
    return before


def end_strays(own: Collection[int]) -> int:
    """End every stray, and those that come from ending it. `own` are the children started here. Blocking.

    Returns how many were ended. Gives up after STRAY_SECONDS_MAX, with a line in the log.
    """
    ended: set[int] = set()
    until = time.monotonic() + STRAY_SECONDS_MAX
    while left := [pid for pid in _children_in_other_sessions() if pid not in own]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        ended.update(left)
        if time.monotonic() >= until:
            _log.error("strays_left", pids=left)
            break
        time.sleep(STRAY_STEP_SECONDS)  # a kernel tells of an end when asked; a stray's own children come after it
    if ended:
        _log.warning("strays_ended", pids=sorted(ended))
    return len(ended)


def _children_in_other_sessions() -> list[int]:
    me, session = os.getpid(), os.getsid(0)
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == me and int(fields[3]) != session:
            found.append(int(name))
    return found
