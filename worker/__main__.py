"""`python -m worker`: one node's worker, until it is told to stop.

SIGTERM and SIGINT stop it in good order: work is given back, residents are drained and unloaded, the
session is left; a second signal ends the process at once, and the kernel ends its children with it.
Exit codes: 0 stopped, 1 a defect, 2 wrong settings, 3 fenced by a newer worker, 4 refused by the control plane,
6 the NATS server closed the connection with an error. However it ends, its model processes have ended before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import structlog
import uvloop

from worker.agent import Agent
from worker.settings import SettingsError, WorkerSettings, read_settings

EXIT_SETTINGS = 2
EXIT_SECOND_SIGNAL = 130
_log = structlog.get_logger("worker")


def configure_logging(settings: WorkerSettings) -> None:
    level = logging.getLevelNamesMapping().get(settings.log_level.upper(), logging.INFO)
    render = structlog.processors.JSONRenderer() if settings.log_json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )


async def serve(settings: WorkerSettings) -> int:
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(EXIT_SECOND_SIGNAL)
        _log.info("stopping", signal=signal.Signals(number).name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return await Agent(settings, stop).run()


def main() -> int:
    try:
        settings = read_settings()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_SETTINGS
    configure_logging(settings)
    return uvloop.run(serve(settings))


if __name__ == "__main__":
    sys.exit(main())
