"""A deterministic asyncio loop: virtual time, processes that can be killed or stopped in the middle.

Time moves only when nothing can run: then the clock jumps to the next timer. Each callback belongs to the
simulated process in whose context it was scheduled (PROCESS). Callbacks of a killed process are thrown away, so
a kill runs no cleanup, as with SIGKILL; callbacks of a stopped one wait until it goes on, as with SIGSTOP.
Work for threads runs at once, in place.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import sys
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any

STEPS_MAX = 3_000_000  # callbacks in one story; more is a busy loop


class Process:
    """One simulated operating system process. Names repeat over restarts, objects do not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.waiting: list[events.Handle] = []
        self.on_kill: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<{self.name}>"


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.steps = 0
        self._timers: list[tuple[float, int, events.TimerHandle]] = []  # the number keeps ties in their order
        self._numbers = itertools.count()
        self.errors: list[str] = []
        self.kept: list[asyncio.Task[Any]] = []  # a killed process's tasks must not be collected: that runs cleanup
        self.set_exception_handler(self._note_error)
        self.set_task_factory(_task_in_process)

    def time(self) -> float:
        return self.now_s

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """Cancelled timers leave when their time comes."""

    def _run_once(self) -> None:
        """Move the clock if nothing can run, then run once what can. As asyncio's, without files to wait for."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise RuntimeError("nothing can ever happen again: the story is stuck")
            self.now_s = max(self.now_s, timers[0][0])
        now_s = self.now_s
        while timers and timers[0][0] <= now_s:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                self._run_in_process(handle)

    def _run_in_process(self, handle: events.Handle) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise RuntimeError("too many steps: something runs in circles")
        process = handle._context.get(PROCESS)
        if process is None or (process.alive and not process.stopped):
            handle._run()
        elif process.alive:
            process.waiting.append(handle)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - a thread's error is its caller's
            future.set_exception(error)
        return future

    # --- processes ----------------------------------------------------------------------------------------

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as part of `process`."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(work, context=context)

    def kill(self, process: Process) -> None:
        """SIGKILL: nothing of it runs any more, not even a finally."""
        if not process.alive:
            return
        process.alive = False
        process.waiting.clear()
        for tell in process.on_kill:
            tell()

    def stop_process(self, process: Process) -> None:
        process.stopped = True

    def resume(self, process: Process) -> None:
        process.stopped = False
        self._ready.extend(process.waiting)
        process.waiting.clear()

    def bury(self) -> None:
        """After the story: let go of what killed processes left, without letting it say anything."""
        before, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            self.kept.clear()
            self._ready.clear()
            self._timers.clear()
            self.close()
        finally:
            sys.unraisablehook = before

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        message = str(context.get("message"))
        left_behind = "was destroyed" in message or "never retrieved" in message
        if left_behind and (error is None or isinstance(error, asyncio.CancelledError)):
            return
        self.errors.append(f"{message}: {error!r}")


def _task_in_process(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, **options)
    task._log_destroy_pending = False  # killed processes leave tasks that never end
    if isinstance(loop, SimLoop):
        loop.kept.append(task)
    return task
