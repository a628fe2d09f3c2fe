"""What every service process shares: settings, structured logs, uvloop, and an orderly end on a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
import uvloop

from services.settings import Settings
from worker.cancellation import end_tasks

# Most of what a service allocates is freed by reference counts; young collections at the default of 700 cost
# several percent of a busy writer and find nothing.
GC_THRESHOLD = 50_000
# The database is spoken to in a thread. When it has an answer it should not wait 5 ms, the default, for the
# interpreter while the loop works through messages.
SWITCH_S = 0.0002


def configure_logging(settings: Settings, process: str) -> None:
    """One line per event on standard error, as JSON where `TENURE_LOG_JSON` is set."""
    level = logging.getLevelNamesMapping().get(settings.log_level.upper(), logging.INFO)
    renderer = structlog.processors.JSONRenderer() if settings.log_json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    structlog.contextvars.bind_contextvars(process=process)


EXIT_BUS_CLOSED = 6


class Stop(asyncio.Event):
    """Set when the process is to end: by a signal, or with an exit code by what it cannot go on without."""

    exit_code = 0

    def end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.set()


def run_service(process: str, main: Callable[[Settings, Stop], Awaitable[int]]) -> int:
    """Run `main(settings, stop)` until it returns its exit code; SIGTERM and SIGINT set `stop`."""
    settings = Settings().resolved()
    configure_logging(settings, process)
    gc.set_threshold(GC_THRESHOLD, 50, 1_000)
    sys.setswitchinterval(SWITCH_S)

    async def supervised() -> int:
        stop = Stop()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        return await main(settings, stop) or stop.exit_code

    return uvloop.run(supervised())


async def until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run `work` until it fails or `stop` is set; its error is raised, its end without one is an error."""
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    done, pending = await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    await end_tasks(pending)
    if task in done:
        task.result()
        raise RuntimeError("a service loop ended by itself")
