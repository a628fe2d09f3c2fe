"""Waiting: what a person sees while work is done, and how the end of work becomes a result or a refusal.

On a terminal one line shows the stages as they change, with the time so far; in a pipe each stage is a line.
All of it is on stderr.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from projections.rows import WorkRow
from schemas.codes import Code, Refusal
from schemas.replies import Reply
from services.cli.screen.formats import short, span
from services.cli.screen.terminal import Terminal
from services.client import Client

T = TypeVar("T")
REFRESH_PER_S = 8


class Trail:
    """The stages of one work item so far, as a line that can be drawn again and again."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.stages: list[str] = []
        self.began = time.monotonic()
        self._spinner = Spinner("dots")

    def add(self, stage: str) -> bool:
        """True where the stage is new."""
        if self.stages and self.stages[-1] == stage:
            return False
        self.stages.append(stage)
        return True

    @property
    def elapsed_ms(self) -> float:
        return (time.monotonic() - self.began) * 1_000

    def __rich__(self) -> Table:
        line = Table.grid(padding=(0, 1))
        trail = Text(" → ".join(self.stages) or "asking", style="dim")
        line.add_row(self._spinner, Text(self.label, style="bold"), trail, Text(span(self.elapsed_ms), style="cyan"))
        return line


async def ended(client: Client, terminal: Terminal, work_id: str, label: str, position: int | None = None) -> WorkRow:
    """Wait for the end of a work item, showing its stages. The row is returned however it ended."""
    trail = Trail(f"{label} {short(work_id)}")
    drawn = terminal.err.is_terminal

    def tell(stage: str) -> None:
        if trail.add(stage) and not drawn:
            terminal.say(f"{trail.label}: {stage} ({span(trail.elapsed_ms)})")

    if not drawn:
        return await client.wait_work(work_id, position, tell)
    with terminal.live(trail, REFRESH_PER_S):
        work = await client.wait_work(work_id, position, tell)
    terminal.say(f"{trail.label}: {' → '.join(trail.stages)} ({span(trail.elapsed_ms)})")
    return work


def completed(work: WorkRow) -> WorkRow:
    """The work, if it completed. What failed or was cancelled is raised as the refusal it stands for."""
    if work.stage == "completed":
        return work
    if work.stage == "cancelled":
        raise Refusal(Code.WORK_CANCELLED, f"{work.kind} {short(work.id)} was cancelled", {"work_id": work.id})
    code = Code.__members__.get(work.code or "", Code.INTERNAL_ERROR)
    raise Refusal(code, f"{work.kind} {short(work.id)} failed: {work.message}", {"work_id": work.id})


def made(reply: Reply, key: str) -> str:
    """The id of what a command made. An accepted reply without it breaks the contract."""
    value: Any = reply.result.get(key)
    if not isinstance(value, str):
        raise Refusal(Code.INTERNAL_ERROR, f"the control plane accepted the command and did not say its {key}")
    return value


@contextmanager
def byte_progress(terminal: Terminal, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar over bytes, on stderr; only a bar on a terminal, one line in a pipe."""
    if not terminal.err.is_terminal:
        terminal.say(label)
        yield lambda count: None
        return
    columns = (TextColumn(label), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=terminal.err, transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)


async def in_thread(work: Callable[[Callable[[int], None]], T], on_bytes: Callable[[int], None]) -> T:
    """Run blocking work that reports its bytes in a thread, and stop it at its next block when we are cancelled."""
    stop = threading.Event()

    def checked(count: int) -> None:
        if stop.is_set():
            raise InterruptedError
        on_bytes(count)

    try:
        return await asyncio.to_thread(work, checked)
    except asyncio.CancelledError:
        stop.set()
        raise
