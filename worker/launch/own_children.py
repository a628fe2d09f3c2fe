"""The children that this process has started: who they are, and that nothing of theirs is left when they have ended.

Children are started one after the other, under `births`, so that at no moment somebody looks for strays while a child
is on its way whose pid nobody knows yet.
"""

from __future__ import annotations

import asyncio
import os
import signal

from worker.launch.strays import end_strays
from worker.launch.watch import Watch, reap


class OwnChildren:
    """For one event loop. With `ends_strays`, what came to this process from ended children is ended as well.

    That is only for a process that has no other children in sessions of their own: the worker.
    """

    def __init__(self, *, ends_strays: bool = False) -> None:
        self.births = asyncio.Lock()
        self._ends_strays = ends_strays
        self._pids: set[int] = set()

    def watch(self, pid: int, output: int) -> Watch:
        """Call it while holding `births`. The watch owns `output` from here on."""
        try:
            watch = Watch(pid, output)
        except OSError:  # no file handle left: nobody would see it end
            os.kill(pid, signal.SIGKILL)
            reap(pid)
            raise
        self._pids.add(pid)
        watch.exited.add_done_callback(lambda _: self._pids.discard(pid))
        return watch

    async def ended(self, watch: Watch) -> int:
        """The exit code, once the process has ended and everything it left behind as well."""
        exit_code = await asyncio.shield(watch.exited)
        if self._ends_strays:
            async with self.births:
                await asyncio.to_thread(end_strays, frozenset(self._pids))
        return exit_code
