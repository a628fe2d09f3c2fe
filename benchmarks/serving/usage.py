"""Whose processor time it was: of single processes, of this run's processes together, of everybody.

A figure of a machine that others use is none; so a run tells how much of it others took meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

import psutil


def cpu_s(pids: Sequence[int]) -> float:
    """Processor seconds of these processes so far, all threads."""
    total = 0.0
    for pid in pids:
        times = psutil.Process(pid).cpu_times()
        total += times.user + times.system
    return total


def _ours_s() -> float:
    """Of this process and all below it, those that have ended among them."""
    total, own = 0.0, psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _everybody_s() -> float:
    """Of all processors since the machine started, what a hypervisor took for others too."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


class Share:
    """The share of all processors since it was made: ours, and others'."""

    def __init__(self) -> None:
        self._at = time.perf_counter(), _ours_s(), _everybody_s()

    def told(self) -> tuple[float, float]:
        at, ours, everybody = time.perf_counter(), _ours_s(), _everybody_s()
        capacity = max(at - self._at[0], 1e-3) * (os.cpu_count() or 1)
        mine = (ours - self._at[1]) / capacity
        return mine, max((everybody - self._at[2]) / capacity - mine, 0.0)
