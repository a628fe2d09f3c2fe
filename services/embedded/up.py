"""`tenure up`: run a Plane in the foreground until SIGINT or SIGTERM, telling each thing that happens.

A second one on the same data folder ends with exit code 3 and names the pid of the first. A failed start stops what
it had started. A worker that does not register is told and does not end the rest: the control plane is of use
without it, and the supervisor goes on trying.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console
from rich.text import Text

from schemas.codes import ADVICE, Refusal
from services.cli.exits import OK, exit_code
from services.embedded.plane import NODE_ALIVE_S, Plane
from services.settings import Settings

NAME_WIDTH = 10


def up(settings: Settings, console: Console) -> int:
    """Run until stopped; the exit code (see services.cli.exits)."""
    try:
        return asyncio.run(serve(settings, console))
    except Refusal as refusal:
        console.print(Text(f"{refusal.code}: {refusal.message}", style="bold red"))
        console.print(Text(refusal.detail.get("advice") or ADVICE[refusal.code]))
        return exit_code(refusal.code)


async def serve(settings: Settings, console: Console) -> int:
    """Like `up`, inside a running loop; what cannot start is raised as a Refusal."""

    def tell(name: str, what: str) -> None:
        console.print(Text.assemble((f"{name:<{NAME_WIDTH}} ", "cyan"), what), soft_wrap=True)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    plane = Plane(settings, tell=tell)
    stopping = asyncio.create_task(stop.wait())
    starting = asyncio.create_task(plane.start())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()  # it stops what it started
        with suppress(asyncio.CancelledError):
            await starting
        stopping.cancel()
        return OK
    try:
        starting.result()
        await _attend(plane, stopping, tell_ready=lambda text: tell("tenure", text))
    finally:
        stopping.cancel()
        await plane.stop()
    return OK


async def _attend(plane: Plane, stopping: asyncio.Task[bool], tell_ready: Callable[[str], None]) -> None:
    """Keep the plane until `stopping` is done; say when the node is there."""

    async def announce() -> None:
        try:
            node = await plane.node_alive()
        except Refusal as refusal:
            tell_ready(f"no worker yet after {NODE_ALIVE_S:g} s ({refusal.message})")
            return
        tell_ready(f"ready: node {node.id}, generation {node.generation}, data in {plane.data_dir}; Ctrl-C stops")

    keeping = asyncio.create_task(plane.keep())
    announcing = asyncio.create_task(announce())
    try:
        await asyncio.wait({keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()  # it never ends by itself: this raises what broke it
    finally:
        for task in (keeping, announcing):
            task.cancel()
        await asyncio.gather(keeping, announcing, return_exceptions=True)
