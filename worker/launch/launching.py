"""How a model process comes to be: a copy of the fork server, or a fresh interpreter where none can be had.

Both are the worker's own children, with the same environment, one link, one output and nothing else of the worker's.
A try with the fork server that failed may have begun to make a process: what that one was given is closed, and the
fresh one gets a link and an output of its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import structlog
from msgspec import Struct

from schemas.evidence import Way
from worker.adapters import registry
from worker.launch.fork_server import Begin, Fork
from worker.launch.forking import Ends, ForkServer, Unavailable, start_program
from worker.launch.own_children import OwnChildren
from worker.launch.strays import become_reaper
from worker.launch.watch import Watch

_log = structlog.get_logger(__name__)


class Started(Struct, frozen=True, eq=False):
    """A model process that has just come to be."""

    way: Way
    link: socket.socket
    watch: Watch


class Launcher:
    """Starts model processes for one worker. Open it once, close it when they have ended."""

    def __init__(self, state: Path, children: OwnChildren, fork_server: ForkServer | None) -> None:
        self.state = state
        self.children = children
        self.fork_server = fork_server
        self._was_reaper = become_reaper()
        self._running = asyncio.create_task(fork_server.run()) if fork_server is not None else None

    @classmethod
    def open(cls, state: Path, begin: Begin | None, *, ends_strays: bool = False) -> Launcher:
        """With a fork server that begins like this; with none where there is nothing to begin with."""
        children = OwnChildren(ends_strays=ends_strays)
        wanted = begin is not None and bool(begin.imports)
        return cls(state, children, ForkServer(state, begin, children) if begin is not None and wanted else None)

    async def start(self, scratch: Path, environment: dict[str, str]) -> Started:
        """Raises OSError where neither way works. Cancelled, it leaves no process."""
        if self.fork_server is not None:
            try:
                return await self._forked(self.fork_server, scratch, environment)
            except Unavailable as error:
                _log.warning("started_fresh", reason=str(error))
        return await self._fresh(scratch, environment)

    async def _forked(self, server: ForkServer, scratch: Path, environment: dict[str, str]) -> Started:
        ends = Ends.make()
        try:
            watch = await server.fork(Fork(environment, str(scratch)), ends)
        except BaseException:
            ends.link.close()
            raise
        return Started("forked", ends.link, watch)

    async def _fresh(self, scratch: Path, environment: dict[str, str]) -> Started:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-s", "-P", "-m", "worker.model.child_main", str(theirs.fileno()), str(os.getpid())]
        try:
            async with self.children.births:
                watch = start_program(self.children, command, environment, scratch, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return Started("fresh", ours, watch)

    async def close(self) -> None:
        """End the fork server. Model processes are for those to end who started them."""
        if self.fork_server is not None and self._running is not None:
            await self.fork_server.close(self._running)
        become_reaper(self._was_reaper)


def beginning() -> Begin:
    """What a fork server of this worker imports and makes: for the adapters that can run here."""
    imports, warm = registry.ready_beforehand()
    return Begin(imports, warm)
